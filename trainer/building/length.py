"""How long a run is, and what follows from its length."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from torch import nn

from ..checkpoint import Start
from ..config.interval import Interval, checked_interval
from ..config.train_config import TrainConfig, profiled_steps
from ..data.batches import TrainData
from ..data.indexed import IndexedData
from ..errors import ConfigError, Origin, Problem, origin_of
from ..text import listed
from .model import held_in_evaluation


def last_step(config: TrainConfig, data: TrainData, start: Start) -> int:
    """Return the optimizer step at which training ends: by epochs from the start, or by max_steps.

    Raises:
        ConfigError: the checkpoint to begin with is behind that step already.
    """
    ends = {}
    if config.epochs is not None:
        assert isinstance(data, IndexedData), "epochs are refused for streams"
        ends["epochs"] = start.step + data.steps_left(start.samples, config.epochs)
    if config.max_steps is not None:
        ends["max_steps"] = config.max_steps
    key = min(ends, key=lambda name: (ends[name], name == "epochs"))
    end = ends[key]

    _refuse_end_before(start, end, key, getattr(config, key))
    return end


def stop_step(
    config: TrainConfig,
    steps_per_epoch: int | None,
    start: Start,
    origins: Mapping[str, Origin],
) -> int | None:
    """Return the step at which ``stop_at`` ends this run; None without it.

    Raises:
        ConfigError: the checkpoint to begin with is behind that step already.
    """
    origin = origin_of(origins, "stop_at")
    until = checked_interval(config.stop_at, steps_per_epoch, origin)
    if until is None:
        return None
    _refuse_end_before(start, until.first_step, "stop_at", config.stop_at)
    return until.first_step


def _refuse_end_before(start: Start, end: int, key: str, value: int | str | None) -> None:
    if start.found is not None and start.step > end:
        rule = (
            f"ends the run at step {end}, and {start.found.path} is at step {start.step} already; "
            "raise it"
        )
        raise ConfigError(Problem(origin=Origin("resume", key=key), value=value, rule=rule))


def most_checkpoints(config: TrainConfig, save_every: Interval | None, total_steps: int) -> int:
    """Count the checkpoints that there will be at once, the one that is being written included."""
    saves = 1 if save_every is None else math.ceil(total_steps / save_every.steps)
    count = min(saves, config.keep_last + 1)
    if config.best_metric is not None:
        count += 1
    if config.keep_every:
        count += total_steps // config.keep_every
    return count


def profile_notices(steps: str | None, begin: int, end: int) -> list[str]:
    """Return a notice where this run makes none of the steps that are to be profiled.

    The first step of a process is never traced.

    Args:
        steps: the config's ``profile_steps``.
        begin, end: optimizer steps before and after this run.
    """
    if steps is None:
        return []
    first = profiled_steps(steps)[0]
    if begin + 1 < first <= end:
        return []
    return [
        f"profile_steps {steps}: nothing is traced: this run begins at step {begin}, ends at {end}"
    ]


def epoch_end_notices(model: nn.Module, data: TrainData, total_steps: int) -> list[str]:
    """Return a notice where the short last step of an epoch gives a rank one example.

    ``BatchNorm1d`` cannot take one row while it trains.
    """
    in_evaluation = held_in_evaluation(model)
    norms = [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.BatchNorm1d) and module not in in_evaluation
    ]
    reached = data.steps_per_epoch is not None and total_steps >= data.steps_per_epoch
    if not norms or not reached or data.size is None or data.drop_last:
        return []

    layout = data.layout
    if layout.micro_batch_size == 1:
        return []
    block = data.size % layout.global_batch_size % (layout.micro_batch_size * layout.world_size)
    ends = [block * rank // layout.world_size for rank in range(layout.world_size + 1)]
    sizes = [end - begin for begin, end in pairwise(ends)]
    if 1 not in sizes:
        return []
    return [
        f"the last step of an epoch gives rank {sizes.index(1)} one example, which {listed(norms)} "
        "(BatchNorm1d) cannot take as one row while it trains: "
        "set drop_last: true, or another batch size"
    ]
