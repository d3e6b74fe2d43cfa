"""Parameters that were frozen, thawed or replaced behind the optimizer's back.

Under every strategy the optimizer steps the parameters that were trainable when training began.
"""

from __future__ import annotations

from ..errors import LaunchError
from ..hooks import Callback, StepInfo
from ..private.torch import gradient_hooks
from ..run import Run
from ..strategies.tensors import changed_trainable, unwrapped


class TrainableSet(Callback):
    """Looks, at logged steps, whether the trainable parameters are those of the beginning."""

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Raise ``LaunchError`` if layers were frozen, thawed, replaced or added."""
        if not info.metrics:
            return

        refuse_changed(run)
        for name, parameter in unwrapped(run.model).named_parameters():
            # No gradient passes FSDP2's part of a parameter.
            if hasattr(parameter, "placements") and gradient_hooks(parameter):
                raise LaunchError(
                    f"{name}: a hook on its gradient would not be called: "
                    "register it in build_model"
                )


def refuse_changed(run: Run) -> None:
    """Raise ``LaunchError`` if other parameters are trainable than when training began."""
    named = list(unwrapped(run.model).named_parameters())
    trainable = {parameter for _, parameter in named if parameter.requires_grad}
    changed = trainable.symmetric_difference(run.strategy.trainable)
    if changed:
        raise LaunchError(
            changed_trainable([name for name, parameter in named if parameter in changed])
        )
