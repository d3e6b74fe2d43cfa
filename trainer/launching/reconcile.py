"""Values with two possible homes: the training config, and the files that say how a job runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ..config.load import TrainConfig
from ..config.schedules import TO_FINAL
from ..config.train_config import DEFAULTS
from ..errors import Problem

if TYPE_CHECKING:
    from .request import Asked, Given, Request, Section

T = TypeVar("T")
D = TypeVar("D")


class Homes:
    """Collects where values come from, and every pair of homes that disagrees.

    Args:
        config: the training config; ``where`` is the home of each of its values that was read from somewhere.
    """

    def __init__(self, config: TrainConfig, where: Mapping[str, str]) -> None:
        self.config = config
        self.where = dict(where)
        self.problems: list[Problem] = []
        self.notices: list[str] = []

    def says(self, key: str) -> bool:
        """Whether the training config says a value, and not its default; one made in code has no ``where``."""
        return key in self.where or getattr(self.config, key) != DEFAULTS[key]

    def home(self, key: str) -> str:
        return self.where.get(key, "TrainConfig")

    def agree(self, key: str, ours: T | None, asked: Asked[T] | None, default: D) -> T | D:
        """The value of ``key``: the config's, the files', or the default; a disagreement is recorded."""
        if asked is None:
            return default if ours is None else ours
        if ours is not None and ours != asked.value:
            self.refuse(
                key, ours, f"disagrees with {asked.value!r} at {asked.where}; keep one of the two, or make them equal"
            )
        self.where.setdefault(key, asked.where)
        return asked.value

    def section(self, values: dict[str, Any], section: Section) -> None:
        """Lay over ``values``, those of the training config, what a section says, and what it means where it is silent.

        A value that both say, and differently, is recorded as a problem; a default that changes one, as a notice.
        """
        for key in values:
            said, default = section.values.get(key), section.defaults.get(key)
            if said is not None:
                if self.says(key) and _listed(values[key]) != said.value:
                    self.disagree(said, key, values[key])
                values[key] = said.value
                self.where.setdefault(key, said.home)
            elif default is not None and not self.says(key) and _listed(values[key]) != default.value:
                self.notices.append(f"{default.where}: no {default.key}: DeepSpeed's default holds, {default.value}")
                values[key] = default.value
                self.where[key] = section.place.home

    def refuse(self, key: str, value: object, rule: str) -> None:
        """Record what is wrong with a value of the training config."""
        self.problems.append(Problem(where=self.home(key), key=key, value=value, rule=rule))

    def disagree(self, said: Given, key: str, ours: object) -> None:
        """Record that a launch file and the training config say different things."""
        rule = f'disagrees with {key} {ours!r} at {self.home(key)}; keep one, or write "auto"'
        self.problems.append(said.problem(rule))


def choose_optimizer(
    config: TrainConfig, request: Request, homes: Homes, built_by: str | None
) -> tuple[str, dict[str, Any], float]:
    """Return name, settings and learning rate: the config's, or those of a DeepSpeed JSON's ``optimizer`` section.

    Args:
        built_by: the method by which the task builds an optimizer of its own, if it does.
    """
    values: dict[str, Any] = {key: getattr(config, key) for key in ("lr", "weight_decay", "betas", "eps", "momentum")}
    section = request.optimizer
    name: str = config.optimizer or "adamw"
    if section is not None:
        typed = section.typed
        if config.optimizer not in (None, section.name):
            homes.disagree(typed, "optimizer", config.optimizer)
        if built_by is not None:
            rule = f"{built_by} builds the optimizer already; remove one of the two"
            homes.problems.append(section.place.problem(rule))
        name = section.name
        homes.section(values, section)
        home = homes.where["optimizer"] = section.place.home
        homes.notices.append(f"{home}: optimizer {typed.value} runs as torch's {name}, the same under every strategy")
    lr = float(values.pop("lr"))
    keep = ("momentum", "weight_decay") if name == "sgd" else ("betas", "eps", "weight_decay")
    return name, {key: values[key] for key in keep}, lr


def choose_schedule(config: TrainConfig, request: Request, homes: Homes, lr: float) -> tuple[dict[str, Any], float]:
    """Return the plan's values of the schedule, and the learning rate: the config's, or those of a DeepSpeed JSON."""
    section = request.scheduler
    values = {"warmup_steps": config.warmup_steps, "final_lr_ratio": config.final_lr_ratio}
    settings = dict(config.schedule_settings)
    name = config.schedule or "constant"
    if section is not None:
        typed = section.typed
        if config.schedule not in (None, section.name):
            homes.disagree(typed, "schedule", config.schedule)
        name = section.name
        lr = _peak(section, homes, lr)
        _check_length(config, section, homes)
        homes.section(values, _without_other_units(section, homes))
        warms_up = values["warmup_steps"] or config.warmup_samples or config.warmup_fraction
        if warms_up and _warmup_type(section, homes) == "log":
            settings["warmup_type"] = "log"
        homes.where["schedule"] = section.place.home
    ratio = config.final_lr_ratio
    if ratio and name not in TO_FINAL:
        homes.refuse("final_lr_ratio", ratio, f"has no effect on schedule {name}; remove it")
    elif ratio and section is not None and "final_lr_ratio" not in {**section.values, **section.defaults}:
        homes.refuse("final_lr_ratio", ratio, f"{typed.value} at {section.place.home} ends at 0; remove one of the two")
    return {"schedule": name, "schedule_settings": settings, **values}, lr


def _peak(section: Section, homes: Homes, lr: float) -> float:
    """Return the rate after warm-up, which a section may say as well."""
    said, default = section.values.get("lr"), section.defaults.get("lr")
    known = homes.says("lr")
    if said is not None:
        if known and said.value != lr:
            homes.disagree(said, "lr", lr)
        homes.where.setdefault("lr", said.home)
        return float(said.value)
    if known and default is not None and default.value != lr:
        rule = f"DeepSpeed would rise to its default, {default.value}; lr {lr:g} at {homes.home('lr')} holds"
        homes.notices.append(f"{default.where}: no {default.key}: {rule}")
    return lr


def _check_length(config: TrainConfig, section: Section, homes: Homes) -> None:
    said = section.values.get("max_steps")
    if said is None or (config.epochs is None and said.value == config.max_steps):
        return
    if config.epochs is None:
        homes.disagree(said, "max_steps", config.max_steps)
    else:
        rule = f'the length of this run follows from epochs {config.epochs} at {homes.home("epochs")}; write "auto"'
        homes.problems.append(said.problem(rule))


def _without_other_units(section: Section, homes: Homes) -> Section:
    """Return the section without a warm-up that the training config says in another unit, unless it says one itself."""
    other = next((key for key in ("warmup_samples", "warmup_fraction") if homes.says(key)), None)
    if other is None:
        return section
    said = section.values.get("warmup_steps")
    if said is not None:
        homes.disagree(said, other, getattr(homes.config, other))
    defaults = {key: value for key, value in section.defaults.items() if key != "warmup_steps"}
    return dataclasses.replace(section, defaults=defaults)


def _warmup_type(section: Section, homes: Homes) -> str:
    said, default = section.values.get("warmup_type"), section.defaults.get("warmup_type")
    if said is not None or default is None:
        return "linear" if said is None else str(said.value)
    rule = f"DeepSpeed's default holds, {default.value}: a logarithmic warm-up"
    homes.notices.append(f'{default.where}: no {default.key}: {rule}; write "linear" for a straight one')
    return str(default.value)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
