"""The rule about numbers that are not finite (NaN, infinity). Nothing about them is elsewhere.

- The gradient of a step: its global norm, the same on every rank, shows it. ``step_if_finite``
  makes no optimizer step. Then ``FiniteNumbers`` ends the run (``on_nan: stop``), or says so and
  goes on (``skip``). DeepSpeed and the scaler of fp16 leave such a step out by themselves. The
  scaler may do so 31 times in a row, until the scale fits.
- The loss of a step whose gradient is finite ends the run when the step is logged or saved.
- The buffers of a step that was left out get their values back: ``SkippedBuffers``.
- A checkpoint with such values is refused, because the good checkpoints would be pushed out:
  ``refuse_to_save``. Buffers and frozen parameters may be infinite (a mask of -inf), and not NaN.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from functools import partial
from itertools import chain, compress
from typing import Any

import torch
from torch import Tensor

from ..checkpoint.parts import Parts
from ..checkpoint.pieces import Key
from ..data.batches import TrainData, Window, parts_of_rank
from ..data.indexed import IndexedData
from ..errors import CheckpointError
from ..hooks import Callback, StepInfo
from ..private.torch import mark_stepped, reads_found_inf
from ..run import Run
from ..strategies.buffers import BuffersBefore
from ..text import listed

_SHOWN = 8  # samples in a message


class FiniteNumbers(Callback):
    """Ends the run at a gradient or loss that is not finite, or reports that the step was left out.

    All ranks act at the same step, without a vote. On a GPU the norm is read one step late, so that
    no step waits for the device, and at once if a step is logged, evaluated or saved.

    Args:
        on_nan: ``stop``, or ``skip`` such steps: they change neither weights nor the optimizer's
            state, while data and schedule move on.
    """

    patience = 32  # steps in a row: the scaler of fp16 halves the scale from 65,536 until it fits

    def __init__(self, on_nan: str) -> None:
        self.on_nan = on_nan
        self.in_a_row = 0
        self._on_its_way: tuple[StepInfo, int, _Norm] | None = None

    def on_start(self, run: Run) -> None:
        run.strategy.step_rule = partial(step_if_finite, on_nan=self.on_nan)

    def on_step(self, run: Run, info: StepInfo) -> None:
        if 0 < run.position.skipped_in_a_row < self.patience:
            return

        before, self._on_its_way = self._on_its_way, None
        if before is not None:
            self._judge(run, *before)
        is_saved = info.is_last or run.saves_at(info.step)
        is_shown = info.metrics is not None or info.evaluation is not None
        if info.grad_norm.is_cuda and not is_shown and not is_saved:
            self._on_its_way = (info, run.position.step_began, _Norm(info.grad_norm))
            return
        self._judge(run, info, run.position.step_began, info.grad_norm)

        loss = 0.0
        if info.metrics is not None:
            loss = info.metrics["loss"]
        elif is_saved and run.config.keep_last:
            loss = run.agreement.sum(float(info.loss))
        if self.on_nan == "stop" and not math.isfinite(loss):
            run.fail(f"step {info.step}: {_cause(run, info, run.position.step_began)}")

    def _judge(self, run: Run, info: StepInfo, begin: int, norm: Tensor | _Norm) -> None:
        """Act on the global norm of a step that began at a position in the data."""
        if math.isfinite(float(norm)):
            self.in_a_row = 0
            return

        self.in_a_row += 1
        text = f"step {info.step}: {_cause(run, info, begin)}"
        if self.on_nan == "stop":
            run.fail(text)
        if self.in_a_row == self.patience:
            run.fail(f"{text}; {self.in_a_row} steps in a row were left out")
        run.position.skipped_steps += 1
        run.say(f"note: {text}; the step is left out")


class _Norm:
    """The norm of a gradient on the way from a GPU to the host."""

    def __init__(self, norm: Tensor) -> None:
        self._copy = torch.empty((), dtype=norm.dtype, pin_memory=True)
        self._copy.copy_(norm, non_blocking=True)
        self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._arrived.record()

    def __float__(self) -> float:
        self._arrived.synchronize()
        return float(self._copy)


def _cause(run: Run, info: StepInfo, begin: int) -> str:
    """Return the rank and the samples whose loss is not finite. Collective: call on every rank."""
    samples = samples_of(run.train_data, begin, info.samples)
    losses = zip(map(float, info.shares), samples, strict=True)
    mine = [(loss, numbers) for loss, numbers in losses if not math.isfinite(loss)]
    names: list[str] = []
    if info.update.norms is not None:
        trained = [name for name, _ in run.strategy.parameters()]
        names = [*compress(trained, info.update.norms.isfinite().logical_not())]
    ranks = run.agreement.gather((mine, names[::-1], [*chain(*samples)]))
    for rank, (lost, _, _) in enumerate(ranks):
        for loss, numbers in lost:
            named = listed([*map(str, numbers)], _SHOWN)
            return f"the loss on rank {rank} is {loss}, of samples {named} of Data.train"

    first = max((names for _, names, _ in ranks), key=len)  # a rank may have no row of a parameter
    unknown = "an unknown parameter (this engine keeps no gradients: a single process names it)"
    named = listed([str(number) for _, _, numbers in ranks for number in numbers], _SHOWN)
    return (
        "the gradient is not finite, though the losses of all ranks are: of "
        f"{listed(first) or unknown}, in a step of samples {named} of Data.train"
    )


def samples_of(data: TrainData, begin: int, end: int) -> Sequence[Sequence[int]]:
    """Return this rank's samples of a step by micro-batch: indices, or numbers in a stream.

    Args:
        begin, end: samples consumed before and after the step.
    """
    if isinstance(data, IndexedData):
        return next(data.steps(begin)).micro_batches
    return list(parts_of_rank(range(begin, end), data.layout))


class SkippedBuffers(Callback):
    """Puts the buffers back if a step is left out (``on_nan: skip``).

    The batch of such a step must not stay in the running statistics of a BatchNorm.
    """

    def on_start(self, run: Run) -> None:
        self._buffers = BuffersBefore(run.model)

    def on_window(self, run: Run, window: Window) -> None:
        self._buffers.take()

    def on_step(self, run: Run, info: StepInfo) -> None:
        # A model without buffers does not wait for the device.
        if self._buffers.before and info.update.left_out:
            self._buffers.put_back()


# -- the optimizer's step --------------------------------------------------------------------------


def step_if_finite(optimizer: Any, norm: Tensor, *, on_nan: str) -> bool:
    """Step the optimizer. If the gradient is not finite, leave weights and state unchanged.

    A fused optimizer on a GPU reads the outcome on the device, so that the host does not wait. With
    other optimizers the host would have to wait in each step, and does so for ``skip`` only: with
    ``stop`` they make the step, and the run ends before any result of the step is written.

    Args:
        optimizer: steps the parameters that ``norm`` belongs to.
        norm: the global norm of the gradient, a scalar, the same on every rank.

    Returns:
        Whether the host knows that the step was left out.
    """
    if norm.is_cuda and reads_found_inf(optimizer):
        step_by_flag(optimizer, norm)
    elif (norm.is_cuda and on_nan == "stop") or math.isfinite(norm.item()):
        optimizer.step()
    else:
        mark_stepped(optimizer)
        return True
    return False


def step_by_flag(optimizer: Any, norm: Tensor) -> None:
    """Step a fused optimizer, which reads on the device whether the norm is finite."""
    optimizer.grad_scale = None
    optimizer.found_inf = norm.isfinite().logical_not().float()
    optimizer.step()


# -- checkpoints -----------------------------------------------------------------------------------


def refuse_to_save(run: Run) -> None:
    """Raise ``TrainerError`` if a value that a checkpoint would hold is not finite.

    Collective: call on every rank.
    """
    if not run.config.keep_last:
        return
    mine = ""
    with contextlib.suppress(CheckpointError):  # the save will raise this error, on all ranks
        mine = not_finite(run.parts)
    name = next(filter(None, run.agreement.gather(mine)), "")
    if name:
        run.fail(
            f"step {run.step}: {name} holds values that are not finite: no checkpoint of "
            "it is written, those before are kept"
        )


@torch.no_grad()
def not_finite(parts: Parts) -> str:
    """Return the name of a tensor of this rank's checkpoint, or a buffer, with such values.

    A parameter is called by name, another tensor by kind and name (``buffer mean``). A sum shows
    such a value at a fifteenth of the cost of a test of each, and may overflow: a tensor whose sum
    is not finite is looked at again.

    Raises:
        CheckpointError: as ``Parts.pieces``.
    """
    # Each rank has its own buffers until they are averaged and written.
    buffers = [(Key("buffer", name), buffer) for name, buffer in parts.strategy.buffers()]
    for key, tensor in (*parts.pieces(), *buffers):
        is_fine = not tensor.is_floating_point() or tensor.sum(dtype=torch.float32).isfinite()
        if not is_fine:
            may_be_infinite = key.kind in ("buffer", "frozen")
            values = tensor.float()
            good = ~values.isnan() if may_be_infinite else values.isfinite()
            if not good.all():
                return key.name if key.kind == "parameter" else f"{key.kind} {key.name}"
    return ""
