"""The hook of everything that happens around training without changing it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..state import TrainState


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """One optimizer step.

    Args:
        step: optimizer steps since the start, this one included; one that the fp16 scaler skipped
            counts.
        epoch: epochs done, as a fraction.
        samples: samples consumed by all ranks.
        is_last: whether training ends with this step.
        loss: this rank's part of the global mean, on the device; summed over ranks it is the loss.
        grad_norm: global norm before clipping, on the device.
        shares: what each of this rank's micro-batches added to ``loss``, on the device.
        metrics: plain numbers, on steps that are logged: loss, lr, grad_norm, samples_per_second,
            ...
        evaluation: ``eval/...`` numbers, on steps that were evaluated.
    """

    step: int
    epoch: float
    samples: int
    is_last: bool
    loss: Tensor
    grad_norm: Tensor
    shares: Sequence[Tensor] = ()
    metrics: dict[str, float] | None = None
    evaluation: dict[str, float] | None = None


class Callback:
    """Subclass and override ``on_step``; ``every`` is in optimizer steps.

    Callbacks are called on every rank once a step was logged and evaluated, at every ``every``-th
    step and at the last: the built-in ones first, then yours, and at last the one that saves, so
    that all others are in the checkpoint. One that writes guards itself with ``trainer.is_main``.
    """

    every: int = 1

    def on_step(self, trainer: TrainState, info: StepInfo) -> None:
        """Look at one optimizer step. ``trainer.stop()`` ends training; any rank may ask alone."""
        raise NotImplementedError(f"{type(self).__name__}.on_step")

    def on_end(self, trainer: TrainState, summary: Mapping[str, Any]) -> None:
        """Look at ``summary`` (of summary.json) after the last step and the export; not called when
        training fails.
        """

    def summary(self) -> Mapping[str, Any]:
        """Return what summary.json is to say of it, the same on every rank. Asked after the last
        step.
        """
        return {}

    def state_dict(self) -> Mapping[str, Any]:
        """Return what a checkpoint should keep of it: JSON with tensors in it, the same on every
        rank.

        Asked for once before the first step as well, so that what cannot be saved is known then.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what ``state_dict`` gave. Called before training goes on."""

    def pinned_steps(self) -> Collection[int]:
        """Return the steps whose checkpoints must not be deleted."""
        return ()
