"""Values that may be given twice: in the training config and in the launch files."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ..config.rules import WARMUPS
from ..config.train_config import DEFAULTS, TrainConfig
from ..errors import Origin, Sourced, origin_of


class Reconciler:
    """The values of a run, their origins, and notices.

    ``chosen`` has the keys of the training config: with the launch files' values, and else with the
    config's. ``requested`` are the launch files' values. ConfigError: two places disagree.
    """

    def __init__(
        self,
        config: TrainConfig,
        origins: Mapping[str, Origin],
        requested: Mapping[str, Sourced[Any]],
    ) -> None:
        self.notices: list[str] = []
        self.chosen = SimpleNamespace(**vars(config))
        self.requested = requested
        # A config that was made in code has no origins. There a changed default counts as given.
        changed = [key for key, value in vars(config).items() if value != DEFAULTS.get(key)]
        self.origins = {**{key: Origin("TrainConfig", key=key) for key in changed}, **origins}

        schedule = requested.get("schedule")
        if schedule and not self.is_given("warmup_fraction"):
            # A task's default, for a schedule that does not run.
            self.origins["warmup_fraction"] = schedule.origin
            self.chosen.warmup_fraction = None
        for key, asked in requested.items():
            self._choose(key, asked)

    def is_given(self, key: str) -> bool:
        """Return whether the training config gives a value, and not a default."""
        return key in self.origins and not self.origins[key].is_default

    def found(self, key: str) -> Sourced[Any]:
        """Return the value of a key that counts, for messages."""
        origin = self.origins.get(key) or origin_of(self.origins, key)
        return Sourced(getattr(self.chosen, key), origin)

    def _choose(self, key: str, asked: Sourced[Any]) -> None:
        """Choose the launch files' value of a key, or leave the config's."""
        origin = asked.origin
        configured = getattr(self.chosen, key, None)
        units = [unit for unit in WARMUPS if getattr(self.chosen, unit)]
        if key == "warmup_type" and not units:
            return
        if key == "max_steps" and self.chosen.epochs is not None:
            raise self.found(key).disagrees(asked)
        if key == "warmup_steps" and units not in ([], [key]):
            # The config gives the warm-up in samples, or as a fraction. Then the config holds.
            if not origin.is_default:
                raise self.found(units[0]).disagrees(asked)
            return

        if origin.is_default:
            if key in self.origins or asked.value == configured:
                return
            rule = f"DeepSpeed's default holds, {asked.value}"
            self.notices.append(f"{origin.place}: {origin.key}: {rule}")
        if not self.is_given(key):
            self.origins[key] = origin
        elif configured not in (None, asked.value):
            raise self.found(key).disagrees(asked)
        setattr(self.chosen, key, asked.value)
