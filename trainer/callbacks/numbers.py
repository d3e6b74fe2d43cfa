"""Numbers that are not finite, and losses that jump: found at their step, and told with the rank
and the samples.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch

from ..data.batches import TrainData, share
from ..data.indexed import IndexedData
from ..errors import CheckpointError, TrainerError
from ..state import TrainState
from ..text import listed
from .base import Callback, StepInfo

_SHOWN = 8  # samples in a message


class FiniteNumbers(Callback):
    """Ends the run at a gradient or a loss that is not finite, or says that such a step was left
    out.

    The global norm of the gradient tells, which is the same on every rank: all act at the same
    step, without a vote. On a GPU it is read one step late, so that no step waits for the device,
    and at once where a step is logged, evaluated or saved. The weights have not moved by then
    (``strategies/finite.py``). A loss without a value whose gradient has one is found when it is
    logged or saved.

    Args:
        on_nan: ``stop``, or ``skip`` such steps: they change neither weights nor the optimizer's
            state, while data and schedule go on.
    """

    patience = 32  # steps in a row: fp16's scaler halves its scale from 65,536 until it fits

    def __init__(self, on_nan: str) -> None:
        self.on_nan, self.in_a_row = on_nan, 0
        self._unread: _Step | None = None

    def on_step(self, trainer: TrainState, info: StepInfo) -> None:
        if (
            0 < trainer.skipped_in_a_row < self.patience
        ):  # by fp16's scaler, which looked for itself
            return
        steps = [one for one in (self._unread, _Step(trainer, info)) if one is not None]
        written = info.metrics is not None or info.evaluation is not None or is_saved(trainer, info)
        self._unread = steps.pop() if info.grad_norm.is_cuda and not written else None
        for step in steps:
            if math.isfinite(step.norm()):
                self.in_a_row = 0
            else:
                self._found(trainer, step)
        loss = 0.0 if info.metrics is None else info.metrics["loss"]
        if self.on_nan == "stop" and not math.isfinite(loss):
            refuse(trainer, f"step {info.step}: {_Step(trainer, info).cause(trainer)}")

    def _found(self, trainer: TrainState, step: _Step) -> None:
        self.in_a_row += 1
        text = f"step {step.number}: {step.cause(trainer)}"
        if self.on_nan == "stop":
            refuse(trainer, text)
        if self.in_a_row == self.patience:
            refuse(trainer, f"{text}; {self.in_a_row} steps in a row were left out")
        trainer.skipped_steps += 1
        trainer.say(f"note: {text}; the step is left out")


class _Step:
    """What is needed to tell of a step afterwards; the norm is on its way to the host."""

    def __init__(self, trainer: TrainState, info: StepInfo) -> None:
        self.number, self.shares = info.step, info.shares
        self.position, self.end = trainer.step_began, info.samples
        self._norm, self._arrived = info.grad_norm, None
        if info.grad_norm.is_cuda:
            self._norm = torch.empty((), dtype=info.grad_norm.dtype, pin_memory=True)
            self._norm.copy_(info.grad_norm, non_blocking=True)
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record()

    def norm(self) -> float:
        if self._arrived is not None:
            self._arrived.synchronize()
        return self._norm.item()

    def cause(self, trainer: TrainState) -> str:
        """Say on which rank and samples the loss was lost. Collective."""
        parts = samples_of(trainer.train_data, self.position, self.end)
        values = [float(loss) for loss in self.shares]
        own = [
            (value, part)
            for value, part in zip(values, parts, strict=True)
            if not math.isfinite(value)
        ]
        lost = [
            (rank, *one)
            for rank, ranks in enumerate(trainer.agreement.gather(own))
            for one in ranks
        ]
        if not lost:
            return "the gradient is not finite, though the losses of all ranks are"
        rank, value, part = lost[0]
        others = sorted({other for other, *_ in lost} - {rank})
        more = f", and others on rank {listed([str(one) for one in others])}" if others else ""
        samples = listed([str(index) for index in part], _SHOWN)
        return f"the loss on rank {rank} is {value}, of samples {samples} of Data.train{more}"


def samples_of(data: TrainData, position: int, end: int) -> Sequence[Sequence[int]]:
    """Return this rank's samples of a step by micro-batch: indices of a data set, numbers in a
    stream.
    """
    if isinstance(data, IndexedData):
        _, parts = next(data.samples(position))
        return parts
    return [*share(range(position, end), data.layout)]


def is_saved(trainer: TrainState, info: StepInfo) -> bool:
    """Tell whether a checkpoint is due at a step."""
    return info.is_last or (trainer.save_every is not None and info.step % trainer.save_every == 0)


def refuse(trainer: TrainState, text: str) -> NoReturn:
    """End the run; the checkpoint that is being written is of before, and is waited for.
    Collective.

    Raises:
        TrainerError: always.
    """
    with trainer.meter.paused("saving"), contextlib.suppress(CheckpointError):
        trainer.saver.finish()
    raise TrainerError(
        f"{text}; lower lr, set max_grad_norm, look at the data, or set on_nan: skip"
    )


class LossSpikes(Callback):
    """Looks for logged losses far above the running mean, and warns, or fails before one is saved.

    A run that failed goes on by ``resume: auto`` from the checkpoint before the spike; lower the
    rate for it, or filter the data, since the same samples follow.

    Args:
        deviations: how many of the running standard deviation above the mean a spike is.
        fail: end the run with an error; otherwise a line says so.
        memory: logged losses over which mean and deviation are taken, and that come before the
            first is judged.
    """

    def __init__(self, *, deviations: float = 6.0, fail: bool = False, memory: int = 20) -> None:
        self.deviations, self.fail, self.memory = deviations, fail, memory
        self.count, self.mean, self.square = 0, 0.0, 0.0

    def on_step(self, trainer: TrainState, info: StepInfo) -> None:
        """Judge a logged loss, which is the same on every rank."""
        if info.metrics is None or not math.isfinite(info.metrics["loss"]):
            return
        loss = info.metrics["loss"]
        deviation = math.sqrt(max(0.0, self.square - self.mean**2))
        if self.count >= self.memory and loss > self.mean + self.deviations * deviation:
            text = f"step {info.step}: the loss {loss:.4g} is a spike: {self.mean:.4g} +- {deviation:.2g} before"
            if self.fail:
                refuse(trainer, text)
            return trainer.say(f"note: {text}")
        self.count += 1
        weight = 1 / min(self.count, self.memory)
        self.mean += weight * (loss - self.mean)
        self.square += weight * (loss**2 - self.square)

    def state_dict(self) -> Mapping[str, Any]:
        """Return what the next loss is judged by."""
        return {"count": self.count, "mean": self.mean, "square": self.square}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take that back."""
        self.count, self.mean, self.square = (
            int(state["count"]),
            float(state["mean"]),
            float(state["square"]),
        )
