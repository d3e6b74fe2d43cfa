"""Stand-ins for a run and its ranks, for hooks that are called without a training."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from trainer import StepInfo, TrainerError
from trainer.strategies.base import StepResult


def step_info(step: int = 1, **values: Any) -> StepInfo:
    """Return a step of eight samples with the loss 1."""
    given = {
        "epoch": 0.5,
        "samples": 8 * step,
        "began": 8 * step - 8,
        "loss": torch.tensor(1.0),
        "grad_norm": torch.tensor(1.0),
    }
    given |= values
    update = StepResult(grad_norm=given["grad_norm"])
    return StepInfo(step=step, **{"update": update, **given})


class TwoRanks:
    """The agreement of rank 0 of two ranks.

    Args:
        other: what rank 1 gives where rank 0 gives a value; by default the same.
    """

    distributed = True

    def __init__(self, other: Callable[[Any], Any] = lambda value: value) -> None:
        self.other = other
        self.sent = 0

    def gather(self, value: Any) -> list[Any]:
        self.sent += 1
        return [value, self.other(value)]


def fake_run(**attributes: Any) -> Any:
    """Return a run that has these attributes, keeps what is said and noted, and can fail."""

    def fail(text: str) -> NoReturn:
        raise TrainerError(text)

    run = SimpleNamespace(said=[], noted=[], is_main=True, fail=fail, **attributes)
    run.say = run.said.append
    run.note = lambda *texts: run.noted.extend(texts)
    return run
