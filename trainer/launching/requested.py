"""Values with two possible homes: the training config, and the files that say how a job runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from ..config import TrainConfig
from ..errors import Problem
from ..schema import Checker
from ..train_config import DEFAULTS

if TYPE_CHECKING:
    from .request import Asked, Request

T = TypeVar("T")
D = TypeVar("D")

# DeepSpeed's `Adam` decouples the weight decay unless told otherwise (adam_w_mode), which makes it AdamW.
_OPTIMIZERS = {"adamw": "adamw", "adam": "adamw", "sgd": "sgd"}
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}


class Homes:
    """Collects where values come from, and every pair of homes that disagrees.

    Args:
        config: the training config; ``where`` is the home of each of its values that was read from somewhere.
        lines: the home of each value of a DeepSpeed JSON, by ``deepspeed.`` and its dotted key.
    """

    def __init__(self, config: TrainConfig, where: Mapping[str, str], lines: Mapping[str, str]) -> None:
        self.config = config
        self.where = dict(where)
        self.lines = lines
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
            rule = f"disagrees with {asked.value!r} at {asked.where}; keep one of the two, or make them equal"
            self.problems.append(Problem(where=self.home(key), key=key, value=ours, rule=rule))
        self.where.setdefault(key, asked.where)
        return asked.value

    def refuse(self, asked: Asked[Any], key: str, value: object, rule: str) -> None:
        """Record what is wrong with ``key`` of a DeepSpeed JSON's section."""
        where = self.lines.get(f"deepspeed.{key}", asked.where).removesuffix(f" ({key})")
        self.problems.append(Problem(where=where, key=key, value=value, rule=rule))

    def fits(self, asked: Asked[Any], key: str, value: object, ours: str) -> bool:
        """Whether a section's value could stand in the training config under the name of ``ours``."""
        checker = Checker(lambda _: "")
        checker.settings(TrainConfig, {ours: value})
        for problem in checker.problems:
            self.refuse(asked, key, problem.value, problem.rule)
        return not checker.problems


def choose_optimizer(
    config: TrainConfig, request: Request, homes: Homes, built_by: str | None
) -> tuple[str, dict[str, Any], float]:
    """Name, settings and learning rate: the config's, or those of a DeepSpeed JSON's ``optimizer`` section.

    Args:
        built_by: the method by which the task builds an optimizer of its own, if it does.
    """
    values: dict[str, Any] = {key: getattr(config, key) for key in ("lr", "weight_decay", "betas", "eps", "momentum")}
    asked = request.optimizer
    name: str = config.optimizer or "adamw"
    if asked is not None:
        kind, params = str(asked.value["type"]), dict(asked.value.get("params", {}))
        decoupled = params.pop("adam_w_mode", True)
        params.pop("torch_adam", None)  # says which kernel, not which mathematics
        theirs = _OPTIMIZERS.get(kind.lower())
        if theirs == "adamw" and kind.lower() == "adam" and not decoupled:
            theirs = "adam"
        if theirs is None:
            rule = "not offered from a DeepSpeed JSON (AdamW, Adam, SGD are); build it in Task.build_optimizer"
            homes.refuse(asked, "optimizer.type", kind, rule)
        elif config.optimizer not in (None, theirs):
            rule = f"disagrees with optimizer {config.optimizer!r} at {homes.home('optimizer')}; remove one"
            homes.refuse(asked, "optimizer.type", kind, rule)
        if built_by is not None:
            homes.refuse(asked, "optimizer", kind, f"{built_by} builds the optimizer already; remove one of the two")
        name = theirs or name
        for key, value in params.items():
            if key not in values:
                homes.refuse(asked, f"optimizer.params.{key}", value, f"not a setting of {name} here; remove it")
            elif not homes.fits(asked, f"optimizer.params.{key}", value, key):
                continue
            elif homes.says(key) and list_of(values[key]) != list_of(value):
                rule = f'disagrees with {values[key]!r} at {homes.home(key)}; keep one, or write "auto"'
                homes.refuse(asked, f"optimizer.params.{key}", value, rule)
            else:
                values[key] = value
                homes.where.setdefault(key, asked.where)
        homes.where["optimizer"] = asked.where
        homes.notices.append(f"{asked.where}: optimizer {kind} runs as torch's {name}, the same under every strategy")
    lr = float(values.pop("lr"))
    used = {"adamw": ("betas", "eps", "weight_decay"), "adam": ("betas", "eps", "weight_decay")}
    keep = used.get(name, ("momentum", "weight_decay"))
    return name, {key: values[key] for key in keep}, lr


def choose_schedule(config: TrainConfig, request: Request, homes: Homes, lr: float) -> tuple[str, int]:
    """Schedule name and warm-up steps: the config's, or those of a DeepSpeed JSON's ``scheduler`` section."""
    asked = request.scheduler
    name, warmup = config.schedule or "constant", config.warmup_steps
    if asked is None:
        return name, warmup
    kind, params = str(asked.value["type"]), dict(asked.value.get("params", {}))
    theirs = _SCHEDULES.get(kind)
    if theirs is None:
        rule = f"not offered ({', '.join(_SCHEDULES)} are); use schedule and warmup_steps of the training config"
        homes.refuse(asked, "scheduler.type", kind, rule)
    elif config.schedule not in (None, theirs):
        rule = f"disagrees with schedule {config.schedule!r} at {homes.home('schedule')}; remove one"
        homes.refuse(asked, "scheduler.type", kind, rule)
    known = {"warmup_num_steps", "warmup_min_lr", "warmup_max_lr", "total_num_steps", "warmup_type"}
    for key, value in params.items():
        ours: dict[str, Any] = {"warmup_min_lr": 0, "warmup_max_lr": lr, "total_num_steps": config.max_steps}
        if key not in known:
            homes.refuse(asked, f"scheduler.params.{key}", value, "not offered; remove it")
        elif key == "warmup_num_steps":
            if not homes.fits(asked, f"scheduler.params.{key}", value, "warmup_steps"):
                continue
            for other in ("warmup_samples", "warmup_fraction"):
                if homes.says(other):
                    rule = f"disagrees with {other} {getattr(config, other)} at {homes.home(other)}; keep one"
                    homes.refuse(asked, f"scheduler.params.{key}", value, rule)
            if homes.says("warmup_steps") and value != warmup:
                rule = f"disagrees with warmup_steps {warmup} at {homes.home('warmup_steps')}; keep one"
                homes.refuse(asked, f"scheduler.params.{key}", value, rule)
            elif config.max_steps is not None and value > config.max_steps:
                rule = f"must be at most max_steps, {config.max_steps}"
                homes.refuse(asked, f"scheduler.params.{key}", value, rule)
            warmup = value
        elif key == "warmup_type":
            if value != "linear":
                homes.refuse(asked, f"scheduler.params.{key}", value, 'only linear warm-up is offered; write "linear"')
        elif value != ours[key]:
            rule = f'this run has {ours[key]}; write "auto"'
            homes.refuse(asked, f"scheduler.params.{key}", value, rule)
    if warmup and "warmup_type" not in params:
        homes.notices.append(f"{asked.where}: {kind} warms up linearly here; DeepSpeed's default is logarithmic")
    return theirs or name, warmup


def list_of(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value
