"""The length of a run."""

from __future__ import annotations

from ..checkpoint.store import Start
from ..config.interval import Interval
from ..config.train_config import TrainConfig
from ..data.batches import TrainData
from ..data.indexed import IndexedData
from ..errors import Origin


def last_step(config: TrainConfig, data: TrainData, start: Start) -> int:
    """Return the optimizer step at which training ends: by epochs from the start, or by max_steps.

    Raises:
        ConfigError: the checkpoint to begin with is beyond that step already.
    """
    ends = []
    if config.epochs is not None:
        assert isinstance(data, IndexedData), "epochs are refused for streams"
        ends.append((start.step + data.steps_left(start.samples, config.epochs), "epochs"))
    if config.max_steps is not None:
        ends.append((config.max_steps, "max_steps"))

    end, key = min(ends)
    _refuse_end_before(start, end, key, getattr(config, key))
    return end


def stop_step(config: TrainConfig, until: Interval | None, start: Start) -> int | None:
    """Return the step at which ``stop_at`` ends this run, or None without ``stop_at``.

    Args:
        until: the interval that ``stop_at`` stands for.

    Raises:
        ConfigError: the checkpoint to begin with is beyond that step already.
    """
    if until is None:
        return None
    _refuse_end_before(start, until.first_step, "stop_at", config.stop_at)
    return until.first_step


def _refuse_end_before(start: Start, end: int, key: str, value: int | str | None) -> None:
    if start.found is not None and start.step > end:
        raise Origin("resume", key=key).error(
            f"ends the run at step {end}, and {start.found.path} is at step {start.step} already. "
            "Raise the value",
            value,
        )
