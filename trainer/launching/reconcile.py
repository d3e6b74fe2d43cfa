"""Values that may be given twice: in the training config and in the launch files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.rules import WITH_KEYS
from ..config.train_config import DEFAULTS, TrainConfig
from ..errors import Origin, Sourced, origin_of
from .findings import Findings
from .request import Request, Section


class Reconciler(Findings):
    """Collects where values come from, and every two places that disagree."""

    def __init__(self, config: TrainConfig, origins: Mapping[str, Origin]) -> None:
        super().__init__()
        self.config = config
        # A config that was made in code has no origins. There a changed default counts as given.
        changed = [key for key, value in vars(config).items() if value != DEFAULTS.get(key)]
        self.origins = {**{key: Origin("TrainConfig", key=key) for key in changed}, **origins}

    def is_given(self, key: str) -> bool:
        """Return whether the training config gives a value, and not a default."""
        return key in self.origins and not self.origins[key].is_default

    def configured(self, key: str) -> Sourced[Any]:
        """Return the value of the training config, or its default."""
        return Sourced(getattr(self.config, key), origin_of(self.origins, key))

    def agree(self, key: str, requested: Sourced[Any] | None) -> Any:
        """Return the launch files' value of a key, else the config's. Record a disagreement."""
        configured = getattr(self.config, key, None)
        if requested is None:
            return configured
        origin = requested.origin
        if origin.is_default:
            if key in self.origins or requested.value == configured:
                return configured
            self.notices.append(
                f"{origin.place}: {origin.key}: DeepSpeed's default holds, {requested.value}"
            )
        if not self.is_given(key):
            self.origins[key] = origin
        elif configured not in (None, requested.value):
            self.disagree(self.configured(key), requested)
        return requested.value


def choose_optimizer(
    request: Request, both: Reconciler, built_by: str | None
) -> tuple[str, dict[str, Any], float]:
    """Return name, settings and learning rate of the optimizer, the config's or a JSON's."""
    name: str = both.config.optimizer or "adamw"
    section = request.optimizer
    values: dict[str, Sourced[Any]] = {}
    if section is not None:
        values.update(section.values)
        name = both.agree("optimizer", section.name)
        if built_by is not None:
            both.refuse(
                section.name, f"{built_by} builds the optimizer already; remove one of the two"
            )

    peak = request.scheduler and request.scheduler.values.get("lr")
    if peak:
        own = values.get("lr", peak)
        if not own.origin.is_default and own.value != peak.value:
            both.disagree(own, peak)
        values["lr"] = peak

    def of(key: str) -> Any:
        return both.agree(key, values.get(key))

    lr, decay = of("lr"), of("weight_decay")
    if name in WITH_KEYS:
        keys = ("momentum",) if name == "sgd" else ("betas", "eps")
        return name, {**{key: of(key) for key in keys}, "weight_decay": decay}, lr

    from ..optim.optimizers import check_class

    settings = check_class(
        name,
        both.config.optimizer_settings,
        both.origins,
        lr=lr,
        decay=decay,
        decay_given=both.is_given("weight_decay"),
    )
    return name, settings, lr


def choose_schedule(section: Section | None, both: Reconciler) -> dict[str, Any]:
    """Return the plan's values of the schedule, the config's or those of a DeepSpeed JSON."""
    config = both.config
    chosen: dict[str, Any] = {
        "schedule": config.schedule or "constant",
        "schedule_settings": dict(config.schedule_settings),
        "warmup_steps": config.warmup_steps,
        "warmup_fraction": config.warmup_fraction,
        "final_lr_ratio": config.final_lr_ratio,
    }
    if section is None:
        return chosen
    values = section.values
    chosen["schedule"] = both.agree("schedule", section.name)
    if not both.is_given("warmup_fraction"):  # a task's default, for a schedule that does not run
        both.origins["warmup_fraction"] = section.name.origin
        chosen["warmup_fraction"] = None

    length = values.get("max_steps")
    if length is not None and (config.epochs is not None or length.value != config.max_steps):
        both.disagree(both.configured("max_steps"), length)
    # The config may give the warm-up in samples, or as a fraction. Then the config holds.
    in_samples = config.warmup_samples is not None
    steps = values.get("warmup_steps")
    has_warmup = True
    if not in_samples and chosen["warmup_fraction"] is None:
        has_warmup = chosen["warmup_steps"] = both.agree("warmup_steps", steps)
    elif steps is not None and not steps.origin.is_default:
        both.disagree(both.configured("warmup_samples" if in_samples else "warmup_fraction"), steps)
    if has_warmup and both.agree("warmup_type", values.get("warmup_type")) == "log":
        chosen["schedule_settings"]["warmup_type"] = "log"
    if section.name.value == "cosine":
        chosen["final_lr_ratio"] = both.agree("final_lr_ratio", values.get("final_lr_ratio"))
    return chosen
