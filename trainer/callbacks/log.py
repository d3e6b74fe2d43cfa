"""The numbers of a logged step."""

from __future__ import annotations

import torch

from ..errors import DataError
from ..hooks import Callback, StepInfo
from ..metrics import Layout, WeightedSums, agreed
from ..optim.groups import logged_rates
from ..run import Run


class Log(Callback):
    """Fills ``info.metrics`` at the first step, every ``log_every`` steps and at the last."""

    def __init__(self) -> None:
        self._layout: Layout = {}  # of the values that training steps report, the same on all ranks

    def on_step(self, run: Run, info: StepInfo) -> None:
        if info.is_last or info.step == 1 or info.step % run.config.log_every == 0:
            info.metrics = self.measure(run, info)

    def measure(self, run: Run, info: StepInfo) -> dict[str, float]:
        """Return the global values of a step. Collective: call on every rank."""
        reported = info.reported or WeightedSums()

        # The sum of the ranks' losses, and of the ranks that report other names than at the last
        # exchange of names.
        packed = torch.stack([info.loss, info.loss.new_full((), reported.layout() != self._layout)])
        loss, changes = run.accelerator.reduce(packed, "sum").tolist()
        if changes:
            self._layout = agreed(run.agreement.gather(reported.layout()))

        own = {
            "step": info.step,
            "epoch": round(info.epoch, 6),
            "samples": info.samples,
            "loss": loss,
            **logged_rates(run.rates, run.facts["optimizer_groups"]),
            "grad_norm": float(info.grad_norm),
            "skipped_steps": run.skipped_steps,
            **run.train_data.logged(info.samples),
            **run.meter.read(run.last_step - run.step),
        }

        more = reported.reduce(run.accelerator, self._layout)
        more.pop("loss", None)
        for name in own.keys() & more:
            rule = "a name of the trainer's own; choose another name"
            raise DataError(f"training_step reports {name!r}, {rule}")
        return own | more
