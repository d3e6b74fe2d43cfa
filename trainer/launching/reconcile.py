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
        config: the training config; ``origins`` are those of its values that were read from
            somewhere.
    """

    def __init__(self, config: TrainConfig, origins: Mapping[str, Origin]) -> None:
        super().__init__()
        self.config = config
        self.origins = dict(origins)

    def is_given(self, key: str) -> bool:
        """Return whether the training config gives a value, and not a default.

        A config that was made in code has no origins: it gives a value that is no default.
        """
        origin = self.origins.get(key)
        if origin is None:
            return getattr(self.config, key, None) != DEFAULTS.get(key)
        return not origin.is_default

    def is_task_default(self, key: str) -> bool:
        """Return whether a value is the task's default, because nobody gives one."""
        return key in self.origins and self.origins[key].is_default

    def origin_of(self, key: str) -> Origin:
        """Return where the training config gives a value; of a setting, at least the mapping's."""
        mapping = self.origins.get(key.partition(".")[0], Origin("TrainConfig"))
        return self.origins.get(key, mapping).named(key)

    def configured(self, key: str) -> Sourced[Any]:
        """Return the value of the training config, or its default."""
        return Sourced(getattr(self.config, key), self.origin_of(key))

    def agree(self, key: str, requested: Sourced[Any] | None) -> Any:
        """Return the launch files' value of a key, else the config's. Record a disagreement."""
        configured = getattr(self.config, key, None)
        if requested is None:
            return configured
        if self.is_given(key) and _as_in_json(configured) not in (None, requested.value):
            self.disagree(requested, self.configured(key))
        elif not self.is_given(key):
            self.origins[key] = requested.origin
        return requested.value

    def disagree(self, requested: Sourced[Any], configured: Sourced[Any]) -> None:
        """Record that two places give different values of a key."""
        rule = f"disagrees with {requested.value!r} at {requested.origin}; keep one of the two"
        self.refuse(configured, rule)

    def take(self, key: str, section: Section) -> Any:
        """Return the section's value, else the config's, else the default that DeepSpeed takes."""
        found = section.values.get(key)
        default = section.defaults.get(key)
        is_open = not self.is_given(key) and not self.is_task_default(key)
        if found is None and default is not None and is_open:
            configured = getattr(self.config, key, None)
            if _as_in_json(default.value) != _as_in_json(configured):
                self.origins[key] = section.origin
                self.notice(default, f"DeepSpeed's default holds, {default.value}")
                return default.value
        return self.agree(key, found)


def _as_in_json(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def choose_optimizer(
    config: TrainConfig, request: Request, both: Reconciler, built_by: str | None
) -> tuple[str, dict[str, Any], float]:
    """Return name, settings and learning rate of the optimizer.

    They are the config's, or those of a DeepSpeed JSON's ``optimizer`` section.

    Args:
        built_by: the method by which the task builds an optimizer of its own, if it does.
    """
    keys = ("lr", "weight_decay", "betas", "eps", "momentum")
    values: dict[str, Any] = {key: getattr(config, key) for key in keys}
    name: str = config.optimizer or "adamw"
    section = request.optimizer
    if section is not None:
        name = both.agree("optimizer", Sourced(section.name, section.origin))
        both.origins["optimizer"] = section.origin
        values = {key: both.take(key, section) for key in keys}
        if built_by is not None:
            rule = f"{built_by} builds the optimizer already; remove one of the two"
            both.refuse(Sourced(section.typed.value, section.origin), rule)

    lr = float(values["lr"])
    if name == "sgd":
        return name, {key: values[key] for key in ("momentum", "weight_decay")}, lr
    if name in OPTIMIZERS:
        return name, {key: values[key] for key in ("betas", "eps", "weight_decay")}, lr
    return name, _class_settings(name, lr, values["weight_decay"], both), lr


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

    # The config may give the warm-up in samples, or as a fraction of the run. Then it holds.
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
    elif config.final_lr_ratio and section.name == "linear":
        rule = f"{section.typed.value} at {section.origin} ends at 0; remove one of the two"
        both.refuse(both.configured("final_lr_ratio"), rule)
    return lr
