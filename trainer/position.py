"""The position of a run: the steps done, and further counters, which a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

COUNTERS = ("step", "samples", "skipped_steps", "skipped_in_a_row", "last_evaluation")


@dataclass(kw_only=True, eq=False)
class Position:
    """The only part of a run that changes from step to step.

    Args:
        step: optimizer steps done.
        samples: samples that all ranks have consumed.
        rates: the learning rate of each parameter group in the last step.
        skipped_steps: steps that the fp16 scaler or ``on_nan: skip`` left out.
        skipped_in_a_row: steps in a row that the fp16 scaler left out, up to now.
        last_evaluation: the newest ``eval/...`` numbers of each evaluation set.
        stopping: whether the ranks have agreed that training ends with this step.
        stop_signal: the number of the signal that asked for the end. 0 if code asked.
        stop_reason: the text with which this rank asked for the end.
    """

    step: int = 0
    samples: int = 0
    rates: Sequence[Any] = ()
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    last_evaluation: dict[str, float] = field(default_factory=dict)
    stopping: bool = False
    stop_signal: int = 0
    stop_reason: str = ""
