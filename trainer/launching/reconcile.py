"""Values that may be given twice: in the training config and in the launch files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.rules import WITH_KEYS
from ..config.train_config import DEFAULTS, TrainConfig
from ..errors import Origin, Sourced, origin_of
from .findings import Findings


class Reconciler(Findings):
    """Collects where values come from, and every two places that disagree."""

    def __init__(
        self,
        config: TrainConfig,
        origins: Mapping[str, Origin],
        requested: Mapping[str, Sourced[Any]],
    ) -> None:
        super().__init__()
        self.config = config
        self.requested = requested
        # A config that was made in code has no origins. There a changed default counts as given.
        changed = [key for key, value in vars(config).items() if value != DEFAULTS.get(key)]
        self.origins = {**{key: Origin("TrainConfig", key=key) for key in changed}, **origins}

    def is_given(self, key: str) -> bool:
        """Return whether the training config gives a value, and not a default."""
        return key in self.origins and not self.origins[key].is_default

    def configured(self, key: str) -> Sourced[Any]:
        """Return the value of the training config, or its default."""
        return Sourced(getattr(self.config, key), origin_of(self.origins, key))

    def found(self, key: str) -> Sourced[Any]:
        """Return the value of a key that counts, for messages."""
        return self.requested.get(key) or self.configured(key)

    def agree(self, key: str) -> Any:
        """Return the launch files' value of a key, else the config's. Record a disagreement."""
        configured = getattr(self.config, key, None)
        requested = self.requested.get(key)
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


def choose_optimizer(both: Reconciler, built_by: str | None) -> tuple[str, dict[str, Any], float]:
    """Return name, settings and learning rate of the optimizer, the config's or a JSON's."""
    name = both.agree("optimizer") or "adamw"
    if built_by and "optimizer" in both.requested:
        rule = f"{built_by} builds the optimizer already; remove one of the two"
        both.refuse(both.requested["optimizer"], rule)

    lr, decay = map(both.agree, ("lr", "weight_decay"))
    if name in WITH_KEYS:
        keys = ("momentum",) if name == "sgd" else ("betas", "eps")
        return name, {**{key: both.agree(key) for key in keys}, "weight_decay": decay}, lr

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


def choose_schedule(both: Reconciler) -> dict[str, Any]:
    """Return the plan's values of the schedule, the config's or those of a DeepSpeed JSON."""
    config = both.config
    settings = dict(config.schedule_settings)
    fraction = config.warmup_fraction
    named = both.requested.get("schedule")
    if named and not both.is_given("warmup_fraction"):
        # A task's default, for a schedule that does not run.
        both.origins["warmup_fraction"] = named.origin
        fraction = None

    length = both.requested.get("max_steps")
    if length and (config.epochs is not None or length.value != config.max_steps):
        both.disagree(both.configured("max_steps"), length)
    # The config may give the warm-up in samples, or as a fraction. Then the config holds.
    in_units = config.warmup_samples or fraction
    warmup: Any = config.warmup_steps
    steps = both.requested.get("warmup_steps")
    if not in_units:
        warmup = both.agree("warmup_steps")
    elif steps and not steps.origin.is_default:
        unit = "warmup_samples" if config.warmup_samples else "warmup_fraction"
        both.disagree(both.configured(unit), steps)
    if (warmup or in_units) and both.agree("warmup_type") == "log":
        settings["warmup_type"] = "log"
    return {
        "schedule": both.agree("schedule") or "constant",
        "schedule_settings": settings,
        "warmup_steps": warmup,
        "warmup_fraction": fraction,
        "final_lr_ratio": both.agree("final_lr_ratio"),
    }
