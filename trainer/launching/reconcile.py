"""Values that may be given twice: in the training config and in the launch files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.train_config import DEFAULTS, OPTIMIZERS, TrainConfig
from ..errors import Origin, Sourced
from .findings import Findings
from .request import Request, Section


class Reconciler(Findings):
    """Collects where values come from, and every two places that disagree.

    Args:
        config: the training config. ``origins``: of the values that were read from a file or a
            flag.
    """

    def __init__(self, config: TrainConfig, origins: Mapping[str, Origin]) -> None:
        super().__init__()
        self.config = config
        self.origins = dict(origins)

    def is_given(self, key: str) -> bool:
        """Return whether the training config gives a value, and not a default.

        A config that was made in code has no origins. There a value that is no default is given.
        """
        origin = self.origins.get(key)
        if origin is None:
            return getattr(self.config, key, None) != DEFAULTS.get(key)
        return not origin.is_default

    def is_task_default(self, key: str) -> bool:
        """Return whether a value is the task's default, because nobody gives one."""
        return key in self.origins and self.origins[key].is_default

    def origin_of(self, key: str) -> Origin:
        """Return the origin of a value in the training config, or at least of its mapping."""
        mapping = self.origins.get(key.partition(".")[0], Origin("TrainConfig"))
        return self.origins.get(key, mapping).named(key)

    def configured(self, key: str) -> Sourced[Any]:
        """Return the value of the training config, or its default."""
        return Sourced(getattr(self.config, key), self.origin_of(key))

    def agree(
        self, key: str, requested: Sourced[Any] | None, default: Sourced[Any] | None = None
    ) -> Any:
        """Return the launch files' value of a key, else the config's. Record a disagreement.

        Args:
            default: DeepSpeed's own. It counts if neither the config nor a task has a value.
        """
        configured = getattr(self.config, key, None)
        as_in_json = list(configured) if isinstance(configured, tuple) else configured
        is_given = self.is_given(key)
        if requested is None and default is not None and default.value != as_in_json:
            if not (is_given or self.is_task_default(key)):
                self.notice(default, f"DeepSpeed's default holds, {default.value}")
                requested = default
        if requested is None:
            return configured
        if is_given and as_in_json not in (None, requested.value):
            self.disagree(requested, self.configured(key))
        elif not is_given:
            self.origins[key] = requested.origin
        return requested.value

    def take(self, key: str, section: Section | None) -> Any:
        """Return the value of a key that a section of a DeepSpeed JSON may have."""
        if section is None:
            return getattr(self.config, key)
        return self.agree(key, section.values.get(key), section.defaults.get(key))

    def disagree(self, requested: Sourced[Any], configured: Sourced[Any]) -> None:
        """Record that two places give different values of a key."""
        rule = f"disagrees with {requested.value!r} at {requested.origin}; keep one of the two"
        self.refuse(configured, rule)


def choose_optimizer(
    config: TrainConfig, request: Request, both: Reconciler, built_by: str | None
) -> tuple[str, dict[str, Any], float]:
    """Return name, settings and learning rate of the optimizer.

    They are the config's, or those of a DeepSpeed JSON's ``optimizer`` section.

    Args:
        built_by: the method by which the task builds an optimizer of its own, if it does.
    """
    name: str = config.optimizer or "adamw"
    section = request.optimizer
    if section is not None:
        name = both.agree("optimizer", Sourced(section.name, section.origin))
        both.origins["optimizer"] = section.origin
        if built_by is not None:
            rule = f"{built_by} builds the optimizer already; remove one of the two"
            both.refuse(Sourced(section.typed.value, section.origin), rule)

    lr = float(both.take("lr", section))
    decay = both.take("weight_decay", section)
    if name not in OPTIMIZERS:
        return name, _class_settings(name, lr, decay, both), lr
    keys = ("momentum",) if name == "sgd" else ("betas", "eps")
    settings = {key: both.take(key, section) for key in keys}
    return name, {**settings, "weight_decay": decay}, lr


def _class_settings(name: str, lr: float, decay: float, both: Reconciler) -> dict[str, Any]:
    """Return the settings of an optimizer that is named as a class, and record its problems."""
    from ..optim.optimizers import check_class

    settings, problems = check_class(
        name,
        both.config.optimizer_settings,
        lr=lr,
        decay=decay,
        decay_given=both.is_given("weight_decay"),
    )
    for key, rule, value in problems:
        both.refuse(Sourced(value, both.origin_of(key)), rule)
    return settings


def choose_schedule(
    config: TrainConfig, request: Request, both: Reconciler, lr: float
) -> tuple[dict[str, Any], float]:
    """Return the plan's values of the schedule, and the learning rate.

    They are the config's, or those of a DeepSpeed JSON's ``scheduler`` section.
    """
    chosen: dict[str, Any] = {
        "schedule": config.schedule or "constant",
        "schedule_settings": dict(config.schedule_settings),
        "warmup_steps": config.warmup_steps,
        "warmup_fraction": config.warmup_fraction,
        "final_lr_ratio": config.final_lr_ratio,
    }
    section = request.scheduler
    if section is not None:
        lr = _take_scheduler(chosen, section, both, lr)
    return chosen, lr


def _take_scheduler(chosen: dict[str, Any], section: Section, both: Reconciler, lr: float) -> float:
    """Put the section's values into ``chosen``, and return the learning rate."""
    config = both.config
    chosen["schedule"] = both.agree("schedule", Sourced(section.name, section.origin))
    if both.is_task_default("warmup_fraction"):  # of the task's schedule, which does not run
        both.origins["warmup_fraction"] = section.origin
        chosen["warmup_fraction"] = None
    length = section.values.get("max_steps")
    if length is not None and (config.epochs is not None or length.value != config.max_steps):
        both.disagree(length, both.configured("max_steps" if config.epochs is None else "epochs"))
    peak = section.values.get("lr")
    if peak is not None:
        if both.is_given("lr") and peak.value != lr:
            both.disagree(peak, Sourced(lr, both.origin_of("lr")))
        lr = float(peak.value)
        both.origins["lr"] = peak.origin

    # The config may give the warm-up in samples, or as a fraction. Then the config holds.
    other = "warmup_samples" if config.warmup_samples else "warmup_fraction"
    is_in_steps = not (config.warmup_samples or chosen["warmup_fraction"])
    if is_in_steps:
        chosen["warmup_steps"] = both.take("warmup_steps", section)
    elif "warmup_steps" in section.values:
        both.disagree(section.values["warmup_steps"], both.configured(other))
    has_warmup = not is_in_steps or chosen["warmup_steps"]
    if has_warmup and both.take("warmup_type", section) == "log":
        chosen["schedule_settings"]["warmup_type"] = "log"

    if section.name == "cosine":
        chosen["final_lr_ratio"] = both.take("final_lr_ratio", section)
    return lr
