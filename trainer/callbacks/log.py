"""The numbers of a logged step."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import DataError
from ..hooks import Callback, StepInfo
from ..metrics import Layout, WeightedSums, agreed
from ..optim.groups import logged_rates
from ..run import Run


class Log(Callback):
    """Fills ``info.metrics`` at the first step, every ``log_every`` steps and at the last.

    Measuring waits for the device. docs/gpu.md lists all waits of a step.
    """

    def __init__(self, every: int) -> None:
        self.log_every = every
        self._layout: Layout = {}  # of the values that training steps report, the same on all ranks

    def on_step(self, run: Run, info: StepInfo) -> None:
        if info.is_last or info.step == 1 or info.step % self.log_every == 0:
            info.metrics = self.measure(run, info)

    def measure(self, run: Run, info: StepInfo) -> dict[str, float]:
        """Return the global values of a step. Collective: call on every rank."""
        reported = WeightedSums() if info.reported is None else info.reported
        loss = self._global_loss(run, info.loss, reported)
        own = {
            "step": info.step,
            "epoch": round(info.epoch, 6),
            "samples": info.samples,
            "loss": loss,
            **logged_rates(run.rates, run.optimizer_facts["optimizer_groups"]),
            "grad_norm": float(info.grad_norm),
            "skipped_steps": run.skipped_steps,
            **run.meter.read(run.last_step - run.step),
        }

        more = reported.reduce(run.accelerator, self._layout)
        more.pop("loss", None)
        taken = sorted(own.keys() & more.keys())
        if taken:
            raise DataError(
                f"training_step reports {taken[0]!r}, a name of the trainer's own; "
                "choose another name"
            )
        return own | more

    def _global_loss(self, run: Run, loss: Tensor, reported: WeightedSums) -> float:
        """Sum the ranks' losses, and learn in the same reduction whether reported names changed.

        Names are exchanged only if a rank reports other names than at the last exchange.
        """
        changed = float(reported.layout() != self._layout)
        packed = torch.stack([loss, loss.new_full((), changed)])
        total, changes = run.accelerator.reduce(packed, "sum").tolist()
        if changes:
            layouts = run.agreement.gather(reported.layout())
            self._layout = agreed(layouts)
        return float(total)
