"""Values that may be given twice: in the training config and in the launch files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..config.schedules import TO_FINAL
from ..config.train_config import DEFAULTS, OPTIMIZERS, TrainConfig
from ..config.validate import Validator
from ..errors import Origin, Sourced
from .request import Request, Section


class Reconciler(Validator):
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

        A config that was made in code has no origins: there, it is one other than the default.
        """
        origin = self.origins.get(key)
        if origin is None:
            return getattr(self.config, key, None) != DEFAULTS.get(key)
        return not origin.is_default

    def is_task_default(self, key: str) -> bool:
        """Return whether a value is the task's default, because nobody gives one."""
        return key in self.origins and self.origins[key].is_default

    def is_from_file(self, key: str, origin: Origin) -> None:
        """Record the launch file that gives a value, unless the training config gives the same."""
        if key not in self.origins or self.is_task_default(key):
            self.origins[key] = origin

    def origin_of(self, key: str) -> Origin:
        """Return where the training config gives a value; of a setting, at least the mapping's."""
        mapping = self.origins.get(key.partition(".")[0], Origin("TrainConfig"))
        return self.origins.get(key, mapping).named(key)

    def configured(self, key: str) -> Sourced[Any]:
        """Return the value of the training config, or its default."""
        return Sourced(getattr(self.config, key), self.origin_of(key))

    def agree(self, key: str, requested: Sourced[Any] | None) -> Any:
        """Return the launch files' value of ``key``, else the config's; record a disagreement."""
        configured = self.configured(key)
        if requested is None:
            return configured.value
        if self.is_given(key) and configured.value not in (None, requested.value):
            rule = (
                f"disagrees with {requested.value!r} at {requested.origin}; "
                "keep one of the two, or make them equal"
            )
            self.refuse(configured, rule)
        self.is_from_file(key, requested.origin)
        return requested.value

    def type_of(self, key: str, section: Section) -> str:
        """Return the type of a section. ``key`` is the config's for it: optimizer or schedule."""
        configured = getattr(self.config, key)
        if self.is_given(key) and configured not in (None, section.name):
            self.disagree(section.typed, key, configured)
        self.origins[key] = section.origin
        return section.name

    def take(self, key: str, configured: Any, section: Section) -> Any:
        """Return the section's value, else its engine's default, else the config's, ``configured``.

        A value that both give, and differently, is recorded as a problem; a default that changes
        one, as a notice. The task's own default goes before the engine's, and the notice says so.
        """
        as_in_json = list(configured) if isinstance(configured, tuple) else configured
        found = section.values.get(key)
        if found is not None:
            if self.is_given(key) and as_in_json != found.value:
                self.disagree(found, key, configured)
            self.is_from_file(key, found.origin)
            return found.value

        default = section.defaults.get(key)
        if default is None or self.is_given(key) or as_in_json == default.value:
            return configured
        if self.is_task_default(key):
            owner = self.origins[key].source
            self.note_absent(
                default,
                f"DeepSpeed would take its default, {default.value}; "
                f"{configured}, the {owner}, holds",
            )
            return configured
        self.note_absent(default, f"DeepSpeed's default holds, {default.value}")
        self.origins[key] = section.origin
        return default.value

    def note_absent(self, absent: Sourced[Any], text: str) -> None:
        """Note what holds for a setting that a section does not have."""
        self.notices.append(f"{absent.origin.place}: no {absent.origin.key}: {text}")

    def disagree(self, found: Sourced[Any], key: str, configured: object) -> None:
        """Record that a launch file and the training config give different values."""
        place = self.configured(key).origin.place
        rule = f'disagrees with {key} {configured!r} at {place}; keep one, or write "auto"'
        self.refuse(found, rule)


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
        name = both.type_of("optimizer", section)
        for key in keys:
            values[key] = both.take(key, values[key], section)
        if built_by is not None:
            rule = f"{built_by} builds the optimizer already; remove one of the two"
            both.refuse(Sourced(section.typed.value, section.origin), rule)
        both.notices.append(
            f"{section.origin}: optimizer {section.typed.value} runs as torch's {name}, "
            "the same under every strategy"
        )

    lr = float(values["lr"])
    if name not in OPTIMIZERS:
        settings = _class_settings(name, lr, values["weight_decay"], both)
    elif name == "sgd":
        settings = {key: values[key] for key in ("momentum", "weight_decay")}
    else:
        settings = {key: values[key] for key in ("betas", "eps", "weight_decay")}
    return name, settings, lr


def _class_settings(name: str, lr: float, decay: float, both: Reconciler) -> dict[str, Any]:
    """Return the settings of an optimizer that is named as a class; record what it refuses."""
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


@dataclass(kw_only=True)
class _Schedule:
    """The plan's values of the schedule, by their names there."""

    schedule: str
    schedule_settings: dict[str, Any]
    warmup_steps: int
    warmup_fraction: float | None
    final_lr_ratio: float


def choose_schedule(
    config: TrainConfig, request: Request, both: Reconciler, lr: float
) -> tuple[dict[str, Any], float]:
    """Return the plan's values of the schedule, and the learning rate.

    They are the config's, or those of a DeepSpeed JSON's ``scheduler`` section.
    """
    chosen = _Schedule(
        schedule=config.schedule or "constant",
        schedule_settings=dict(config.schedule_settings),
        warmup_steps=config.warmup_steps,
        warmup_fraction=config.warmup_fraction,
        final_lr_ratio=config.final_lr_ratio,
    )
    section = request.scheduler
    if section is not None:
        lr = _take_scheduler(chosen, section, config, both, lr)
    _check_final_ratio(chosen.schedule, section, config, both)
    return dict(vars(chosen)), lr


def _take_scheduler(
    chosen: _Schedule, section: Section, config: TrainConfig, both: Reconciler, lr: float
) -> float:
    """Put the section's values into ``chosen``, and return the learning rate."""
    chosen.schedule = both.type_of("schedule", section)
    if both.is_task_default("warmup_fraction"):
        # It belongs to the task's schedule, which does not run.
        both.origins["warmup_fraction"] = section.origin
        chosen.warmup_fraction = None

    peak = section.defaults.get("lr")
    if peak is not None and both.is_given("lr") and peak.value != lr:
        place = both.configured("lr").origin.place
        both.note_absent(
            peak, f"DeepSpeed would rise to its default, {peak.value}; lr {lr:g} at {place} holds"
        )
    lr = float(both.take("lr", lr, section))

    length = section.values.get("max_steps")
    if length is not None:
        if config.epochs is not None:
            both.disagree(length, "epochs", config.epochs)
        elif length.value != config.max_steps:
            both.disagree(length, "max_steps", config.max_steps)

    has_warmup = _take_warmup(chosen, section, config, both)
    chosen.final_lr_ratio = both.take("final_lr_ratio", chosen.final_lr_ratio, section)
    if has_warmup and both.take("warmup_type", "linear", section) == "log":
        chosen.schedule_settings["warmup_type"] = "log"
    return lr


def _take_warmup(
    chosen: _Schedule, section: Section, config: TrainConfig, both: Reconciler
) -> bool:
    """Put the section's warm-up into ``chosen``, and return whether there is one.

    The config may give it in samples, or as a fraction of the run; the section does so in steps.
    """
    other = None
    if config.warmup_samples:
        other = "warmup_samples"
    elif chosen.warmup_fraction:
        other = "warmup_fraction"
    if other is None:
        chosen.warmup_steps = both.take("warmup_steps", chosen.warmup_steps, section)
        return bool(chosen.warmup_steps)

    found = section.values.get("warmup_steps")
    if found is not None:
        both.disagree(found, other, getattr(config, other))
    return True


def _check_final_ratio(
    schedule: str, section: Section | None, config: TrainConfig, both: Reconciler
) -> None:
    """Refuse a ``final_lr_ratio`` of the config where the section's schedule ends at 0."""
    if not config.final_lr_ratio or schedule not in TO_FINAL:
        return
    configured = both.configured("final_lr_ratio")
    if section is not None and "final_lr_ratio" not in {**section.values, **section.defaults}:
        rule = f"{section.typed.value} at {section.origin} ends at 0; remove one of the two"
        both.refuse(configured, rule)
