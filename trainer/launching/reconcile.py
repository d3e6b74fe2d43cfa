"""Values that may stand twice: in the training config, and in the files that say how a job runs."""

from __future__ import annotations

from collections.abc import Mapping
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

    def says(self, key: str) -> bool:
        """Tell whether the training config says a value, and not a default; one made in code has no
        origins.
        """
        origin = self.origins.get(key)
        if origin is None:
            return getattr(self.config, key, None) != DEFAULTS.get(key)
        return not origin.is_default

    def is_task_default(self, key: str) -> bool:
        """Tell whether a value is one that the task gives where nobody says any."""
        return key in self.origins and self.origins[key].is_default

    def found(self, key: str, origin: Origin) -> None:
        """Note the launch file that says a value, unless the training config says the same."""
        if key not in self.origins or self.is_task_default(key):
            self.origins[key] = origin

    def origin_of(self, key: str) -> Origin:
        """Return where the training config says a value; of a setting in a mapping, at least where
        the mapping is.
        """
        around = self.origins.get(key.partition(".")[0], Origin("TrainConfig"))
        return self.origins.get(key, around).named(key)

    def ours(self, key: str) -> Sourced[Any]:
        """Return what the training config says, or its default."""
        return Sourced(getattr(self.config, key), self.origin_of(key))

    def agree(self, key: str, asked: Sourced[Any] | None) -> Any:
        """Return the value of ``key``: the launch files', else the config's; a disagreement is
        recorded.
        """
        ours = self.ours(key)
        if asked is None:
            return ours.value
        if self.says(key) and ours.value not in (None, asked.value):
            rule = f"disagrees with {asked.value!r} at {asked.origin}; keep one of the two, or make them equal"
            self.refuse(ours, rule)
        self.found(key, asked.origin)
        return asked.value

    def type_of(self, key: str, section: Section) -> str:
        """Return the type of a section. ``key``, optimizer or schedule, is the training config's
        for it.
        """
        ours = getattr(self.config, key)
        if self.says(key) and ours not in (None, section.name):
            self.disagree(section.typed, key, ours)
        self.origins[key] = section.origin
        return section.name

    def take(self, key: str, ours: Any, section: Section) -> Any:
        """Return what a section says, else what it means where it is silent, else ``ours``, the
        training config's.

        A value that both say, and differently, is recorded as a problem; a default that changes
        one, as a notice. The task's own default goes before the engine's, and the notice says so.
        """
        said, default = section.values.get(key), section.defaults.get(key)
        listed = list(ours) if isinstance(ours, tuple) else ours
        if said is not None:
            if self.says(key) and listed != said.value:
                self.disagree(said, key, ours)
            self.found(key, said.origin)
            return said.value
        if default is None or self.says(key) or listed == default.value:
            return ours
        if self.is_task_default(key):
            owner = self.origins[key].source
            self.silent(
                default,
                f"DeepSpeed would take its default, {default.value}; {ours}, the {owner}, holds",
            )
            return ours
        self.silent(default, f"DeepSpeed's default holds, {default.value}")
        self.origins[key] = section.origin
        return default.value

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
    """Return name, settings and learning rate: the config's, or those of a DeepSpeed JSON's
    ``optimizer`` section.

    Args:
        built_by: the method by which the task builds an optimizer of its own, if it does.
    """
    values: dict[str, Any] = {
        key: getattr(config, key) for key in ("lr", "weight_decay", "betas", "eps", "momentum")
    }
    section = request.optimizer
    name: str = config.optimizer or "adamw"
    if section is not None:
        name = both.type_of("optimizer", section)
        values = {key: both.take(key, ours, section) for key, ours in values.items()}
        if built_by is not None:
            rule = f"{built_by} builds the optimizer already; remove one of the two"
            both.refuse(Sourced(section.typed.value, section.origin), rule)
        both.notices.append(
            f"{section.origin}: optimizer {section.typed.value} runs as torch's {name}, the same under every strategy"
        )
    lr = float(values.pop("lr"))
    if name not in OPTIMIZERS:
        from ..optim.optimizers import check_class

        said, decay = both.says("weight_decay"), values["weight_decay"]
        settings, problems = check_class(
            name, config.optimizer_settings, lr=lr, decay=decay, decay_given=said
        )
        for key, rule, value in problems:
            both.refuse(Sourced(value, both.origin_of(key)), rule)
        return name, settings, lr
    keep = ("momentum", "weight_decay") if name == "sgd" else ("betas", "eps", "weight_decay")
    return name, {key: values[key] for key in keep}, lr


def choose_schedule(
    config: TrainConfig, request: Request, both: Reconciler, lr: float
) -> tuple[dict[str, Any], float]:
    """Return the plan's values of the schedule, and the learning rate: the config's, or those of a
    DeepSpeed JSON.
    """
    section = request.scheduler
    name, settings = config.schedule or "constant", dict(config.schedule_settings)
    warmup, ratio = config.warmup_steps, config.final_lr_ratio
    fraction = config.warmup_fraction
    if section is not None:
        name = both.type_of("schedule", section)
        if both.is_task_default(
            "warmup_fraction"
        ):  # it belongs to the task's schedule, which does not run
            both.origins["warmup_fraction"] = section.origin
            fraction = None
        peak = section.defaults.get("lr")
        if peak is not None and both.says("lr") and peak.value != lr:
            at = both.ours("lr").origin.place
            both.silent(
                peak, f"DeepSpeed would rise to its default, {peak.value}; lr {lr:g} at {at} holds"
            )
        lr = float(both.take("lr", lr, section))
        length, key = (
            section.values.get("max_steps"),
            "max_steps" if config.epochs is None else "epochs",
        )
        if length is not None and (key == "epochs" or length.value != config.max_steps):
            both.disagree(length, key, getattr(config, key))
        in_other_units = {"warmup_samples": config.warmup_samples, "warmup_fraction": fraction}
        other = next((key for key, asked in in_other_units.items() if asked), None)
        if other is None:
            warmup = both.take("warmup_steps", warmup, section)
        elif (said := section.values.get("warmup_steps")) is not None:
            both.disagree(said, other, getattr(config, other))
        ratio = both.take("final_lr_ratio", ratio, section)
        if (warmup or other) and both.take("warmup_type", "linear", section) == "log":
            settings["warmup_type"] = "log"
    asked = config.final_lr_ratio
    if (
        asked
        and name in TO_FINAL
        and section is not None
        and "final_lr_ratio" not in {**section.values, **section.defaults}
    ):
        rule = f"{section.typed.value} at {section.origin} ends at 0; remove one of the two"
        both.refuse(both.ours("final_lr_ratio"), rule)
    chosen = {
        "schedule": name,
        "schedule_settings": settings,
        "warmup_steps": warmup,
        "warmup_fraction": fraction,
    }
    return {**chosen, "final_lr_ratio": ratio}, lr
