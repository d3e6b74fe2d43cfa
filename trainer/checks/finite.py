"""Losses and gradients that are not finite: found at their step, with the rank and the samples."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..data.batches import TrainData, parts_of_rank
from ..data.indexed import IndexedData
from ..hooks import Callback, StepInfo
from ..run import Run
from ..text import listed

_SHOWN = 8  # samples in a message


class FiniteNumbers(Callback):
    """Ends the run at a gradient or loss that is not finite, or reports that it was left out.

    The global norm of the gradient shows it, which is the same on every rank: all act at the same
    step, without a vote. On a GPU it is read one step late, so that no step waits for the device,
    and at once where a step is logged, evaluated or saved; what the weights do meanwhile is in
    ``strategies/finite.py``. A loss without a value whose gradient has one is found when it is
    logged or saved.

    Args:
        on_nan: ``stop``, or ``skip`` such steps: they change neither weights nor the optimizer's
            state, while data and schedule move on.
    """

    patience = 32  # steps in a row: fp16's scaler halves its scale from 65,536 until it fits

    def __init__(self, on_nan: str) -> None:
        self.on_nan = on_nan
        self.in_a_row = 0
        self._pending: _Step | None = None

    def on_start(self, run: Run) -> None:
        run.strategy.on_nan = self.on_nan

    def on_step(self, run: Run, info: StepInfo) -> None:
        # fp16's scaler looked for itself, and skips until its scale fits.
        if 0 < run.skipped_in_a_row < self.patience:
            return

        to_judge = [self._pending] if self._pending is not None else []
        current = _Step(run, info)
        is_shown = info.metrics is not None or info.evaluation is not None
        is_saved = info.is_last or run.saves_at(info.step)
        if info.grad_norm.is_cuda and not is_shown and not is_saved:
            self._pending = current  # judged at the next step, so that no step waits for the device
        else:
            self._pending = None
            to_judge.append(current)

        for step in to_judge:
            self._judge(run, step)

        loss = 0.0 if info.metrics is None else info.metrics["loss"]
        if self.on_nan == "stop" and not math.isfinite(loss):
            run.fail(f"step {info.step}: {current.cause(run)}")

    def _judge(self, run: Run, step: _Step) -> None:
        if math.isfinite(step.norm()):
            self.in_a_row = 0
            return

        self.in_a_row += 1
        text = f"step {step.number}: {step.cause(run)}"
        if self.on_nan == "stop":
            run.fail(text)
        if self.in_a_row == self.patience:
            run.fail(f"{text}; {self.in_a_row} steps in a row were left out")
        run.skipped_steps += 1
        run.say(f"note: {text}; the step is left out")


class _Step:
    """What is needed to describe a step later; its norm is on its way to the host."""

    def __init__(self, run: Run, info: StepInfo) -> None:
        self.number = info.step
        self.shares = info.shares
        self.begin = run.step_began
        self.end = info.samples
        self._norm = info.grad_norm
        self._arrived: torch.cuda.Event | None = None

        if info.grad_norm.is_cuda:
            self._norm = torch.empty((), dtype=info.grad_norm.dtype, pin_memory=True)
            self._norm.copy_(info.grad_norm, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def norm(self) -> float:
        """Return the global norm of the gradient; a GPU is waited for."""
        if self._arrived is not None:
            self._arrived.synchronize()
        return float(self._norm)

    def cause(self, run: Run) -> str:
        """Return on which rank and samples the loss was lost. Collective: call on every rank."""
        losses = [float(loss) for loss in self.shares]
        samples = samples_of(run.train_data, self.begin, self.end)
        mine = []
        for loss, numbers in zip(losses, samples, strict=True):
            if not math.isfinite(loss):
                mine.append((loss, numbers))

        of_ranks = run.agreement.gather(mine)
        ranks = [rank for rank, lost in enumerate(of_ranks) if lost]
        if not ranks:
            return "the gradient is not finite, though the losses of all ranks are"
        first, *others = ranks
        loss, numbers = of_ranks[first][0]
        named = listed([str(number) for number in numbers], _SHOWN)
        more = ""
        if others:
            more = f", and others on rank {listed([str(rank) for rank in others])}"
        return f"the loss on rank {first} is {loss}, of samples {named} of Data.train{more}"


def samples_of(data: TrainData, begin: int, end: int) -> Sequence[Sequence[int]]:
    """Return this rank's samples of a step by micro-batch: indices, or numbers in a stream.

    Args:
        begin, end: samples consumed before and after the step.
    """
    if isinstance(data, IndexedData):
        _, parts = next(data.samples(begin))
        return parts
    return list(parts_of_rank(range(begin, end), data.layout))
