"""Values that may stand twice: in the training config, and in the files that say how a job runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..config.schedules import TO_FINAL
from ..config.train_config import DEFAULTS, OPTIMIZERS
from ..config.validate import Validator
from ..errors import Origin, Sourced

if TYPE_CHECKING:
    from ..config.train_config import TrainConfig
    from .request import Request, Section


class Reconciler(Validator):
    """Collects where values come from, and every two places that disagree.

    Args:
        config: the training config; ``origins`` are those of its values that were read from somewhere.
    """

    def __init__(self, config: TrainConfig, origins: Mapping[str, Origin]) -> None:
        super().__init__()
        self.config = config
        self.origins = dict(origins)

    def says(self, key: str) -> bool:
        """Tell whether the training config says a value, and not its default; one made in code has no origins."""
        return key in self.origins or getattr(self.config, key) != DEFAULTS[key]

    def origin_of(self, key: str) -> Origin:
        """Return where the training config says a value; of a setting in a mapping, at least where the mapping is."""
        around = self.origins.get(key.partition(".")[0], Origin("TrainConfig"))
        return self.origins.get(key, around).named(key)

    def ours(self, key: str) -> Sourced[Any]:
        """Return what the training config says, or its default."""
        return Sourced(getattr(self.config, key), self.origin_of(key))

    def agree(self, key: str, asked: Sourced[Any] | None) -> Any:
        """Return the value of ``key``: the launch files', else the config's; a disagreement is recorded."""
        ours = self.ours(key)
        if asked is None:
            return ours.value
        if self.says(key) and ours.value not in (None, asked.value):
            rule = f"disagrees with {asked.value!r} at {asked.origin}; keep one of the two, or make them equal"
            self.refuse(ours, rule)
        self.origins.setdefault(key, asked.origin)
        return asked.value

    def section(self, name: str, values: dict[str, Any], section: Section) -> None:
        """Lay over ``values``, those of the training config, what a section says, and what it means where it is silent.

        ``name``, optimizer or schedule, is the training config's key for the type of the section.

        A value that both say, and differently, is recorded as a problem; a default that changes one, as a notice.
        """
        if (ours := getattr(self.config, name)) not in (None, section.name):
            self.disagree(section.typed, name, ours)
        self.origins[name] = section.origin
        for key in values:
            said, default = section.values.get(key), section.defaults.get(key)
            if said is not None:
                if self.says(key) and _listed(values[key]) != said.value:
                    self.disagree(said, key, values[key])
                values[key] = said.value
                self.origins.setdefault(key, said.origin)
            elif default is not None and not self.says(key) and _listed(values[key]) != default.value:
                self.silent(default, f"DeepSpeed's default holds, {default.value}")
                values[key] = default.value
                self.origins[key] = section.origin

    def silent(self, absent: Sourced[Any], text: str) -> None:
        """Note what holds for a setting that a section does not have."""
        self.notices.append(f"{absent.origin.place}: no {absent.origin.key}: {text}")

    def disagree(self, said: Sourced[Any], key: str, ours: object) -> None:
        """Record that a launch file and the training config say different things."""
        rule = f'disagrees with {key} {ours!r} at {self.ours(key).origin.place}; keep one, or write "auto"'
        self.refuse(said, rule)


def choose_optimizer(
    config: TrainConfig, request: Request, both: Reconciler, built_by: str | None
) -> tuple[str, dict[str, Any], float]:
    """Return name, settings and learning rate: the config's, or those of a DeepSpeed JSON's ``optimizer`` section.

    Args:
        built_by: the method by which the task builds an optimizer of its own, if it does.
    """
    values: dict[str, Any] = {key: getattr(config, key) for key in ("lr", "weight_decay", "betas", "eps", "momentum")}
    section = request.optimizer
    name: str = config.optimizer or "adamw"
    if section is not None:
        both.section("optimizer", values, section)
        if built_by is not None:
            rule = f"{built_by} builds the optimizer already; remove one of the two"
            both.refuse(Sourced(section.typed.value, section.origin), rule)
        name = section.name
        both.notices.append(
            f"{section.origin}: optimizer {section.typed.value} runs as torch's {name}, the same under every strategy"
        )
    lr = float(values.pop("lr"))
    if name not in OPTIMIZERS:
        from ..optim.optimizers import check_class

        said, decay = both.says("weight_decay"), values["weight_decay"]
        settings, problems = check_class(name, config.optimizer_settings, lr=lr, decay=decay, decay_said=said)
        for key, rule, value in problems:
            both.refuse(Sourced(value, both.origin_of(key)), rule)
        return name, settings, lr
    keep = ("momentum", "weight_decay") if name == "sgd" else ("betas", "eps", "weight_decay")
    return name, {key: values[key] for key in keep}, lr


def choose_schedule(config: TrainConfig, request: Request, both: Reconciler, lr: float) -> tuple[dict[str, Any], float]:
    """Return the plan's values of the schedule, and the learning rate: the config's, or those of a DeepSpeed JSON."""
    section = request.scheduler
    values = {"warmup_steps": config.warmup_steps, "final_lr_ratio": config.final_lr_ratio}
    settings = dict(config.schedule_settings)
    name = config.schedule or "constant"
    if section is not None:
        name = section.name
        lr = _peak(section, both, lr)
        said, key = section.values.get("max_steps"), "max_steps" if config.epochs is None else "epochs"
        if said is not None and (key == "epochs" or said.value != config.max_steps):
            both.disagree(said, key, getattr(config, key))
        both.section("schedule", values, _without_other_units(section, both))
        warms_up = values["warmup_steps"] or config.warmup_samples or config.warmup_fraction
        if warms_up and _warmup_type(section, both) == "log":
            settings["warmup_type"] = "log"
    ratio = config.final_lr_ratio
    if ratio and name not in TO_FINAL:
        both.refuse(both.ours("final_lr_ratio"), f"has no effect on schedule {name}; remove it")
    elif ratio and section is not None and "final_lr_ratio" not in {**section.values, **section.defaults}:
        rule = f"{section.typed.value} at {section.origin} ends at 0; remove one of the two"
        both.refuse(both.ours("final_lr_ratio"), rule)
    return {"schedule": name, "schedule_settings": settings, **values}, lr


def _peak(section: Section, both: Reconciler, lr: float) -> float:
    """Return the rate after warm-up, which a section may say as well."""
    said, default = section.values.get("lr"), section.defaults.get("lr")
    known = both.says("lr")
    if said is not None:
        if known and said.value != lr:
            both.disagree(said, "lr", lr)
        both.origins.setdefault("lr", said.origin)
        return float(said.value)
    if known and default is not None and default.value != lr:
        at = both.ours("lr").origin.place
        both.silent(default, f"DeepSpeed would rise to its default, {default.value}; lr {lr:g} at {at} holds")
    return lr


def _without_other_units(section: Section, both: Reconciler) -> Section:
    """Return the section without a warm-up that the training config says in another unit, unless it says one itself."""
    other = next((key for key in ("warmup_samples", "warmup_fraction") if both.says(key)), None)
    if other is None:
        return section
    said = section.values.get("warmup_steps")
    if said is not None:
        both.disagree(said, other, getattr(both.config, other))
    defaults = {key: value for key, value in section.defaults.items() if key != "warmup_steps"}
    return dataclasses.replace(section, defaults=defaults)


def _warmup_type(section: Section, both: Reconciler) -> str:
    said, default = section.values.get("warmup_type"), section.defaults.get("warmup_type")
    if said is not None or default is None:
        return "linear" if said is None else str(said.value)
    rule = f"DeepSpeed's default holds, {default.value}: a logarithmic warm-up"
    both.silent(default, f'{rule}; write "linear" for a straight one')
    return str(default.value)


def _listed(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
