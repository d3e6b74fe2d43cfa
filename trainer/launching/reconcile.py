"""Values that may be given twice: in the training config and in the launch files."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from ..config.rules import WARMUPS
from ..config.train_config import DEFAULTS, TrainConfig
from ..errors import Origin, Sourced, origin_of


class Reconciler(SimpleNamespace):
    """The values of a run by keys of the training config: the launch files', else the config's.

    ``places`` are the origins of all values, ``notes`` are notices. ConfigError: two places
    disagree.
    """

    def __init__(
        self,
        config: TrainConfig,
        origins: Mapping[str, Origin],
        requested: Mapping[str, Sourced[Any]],
    ) -> None:
        super().__init__(**vars(config))
        self.notes: list[str] = []
        # A config that was made in code has no origins. There a changed default counts as given.
        changed = {
            key: Origin("TrainConfig", key=key)
            for key, value in vars(config).items()
            if value != DEFAULTS.get(key)
        }
        self.places = {**changed, **origins}

        schedule = requested.get("schedule")
        if schedule and not self.is_given("warmup_fraction"):
            # A task's default, for a schedule that does not run.
            self.places["warmup_fraction"] = schedule.origin
            self.warmup_fraction = None
        for key, asked in requested.items():
            self._choose(key, asked)

    def is_given(self, key: str) -> bool:
        """Return whether the training config gives a value, and not a default."""
        return key in self.places and not self.places[key].is_default

    def found(self, key: str) -> Sourced[Any]:
        """Return the value of a key that counts, for messages."""
        return Sourced(getattr(self, key, None), origin_of(self.places, key))

    def _choose(self, key: str, asked: Sourced[Any]) -> None:
        """Choose the launch files' value of a key, or leave the config's."""
        origin = asked.origin
        units = [unit for unit in WARMUPS if getattr(self, unit)]
        if key == "warmup_type" and not units:
            return
        # The config may give the warm-up in samples, or as a fraction. Then the config holds.
        own = units[0] if key == "warmup_steps" and units else key
        configured = self.found(own)
        if key == "max_steps" and self.epochs:
            raise configured.disagrees(asked)

        if origin.is_default:
            if own in self.places or asked.value == configured.value:
                return
            rule = f"DeepSpeed's default holds, {asked.value}"
            self.notes.append(f"{origin.place}: {origin.key}: {rule}")
        if not self.is_given(own):
            self.places[own] = origin
        elif own != key or configured.value not in (None, asked.value):
            raise configured.disagrees(asked)
        setattr(self, key, asked.value)
