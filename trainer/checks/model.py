"""Models with parts that a strategy would silently lose."""

from __future__ import annotations

from torch import nn

from ..errors import LaunchError
from ..hooks import Callback
from ..private.torch import has_accumulation_hooks
from ..run import Read
from ..strategies.tensors import WRAPPERS
from ..text import listed


class SupportedModel(Callback):
    """Looks at a model that a task has built."""

    def on_model(self, run: Read, model: nn.Module) -> None:
        """Raise ``LaunchError`` if a strategy would lose or double a part of the model."""
        for path, module in model.named_modules():
            name = path or type(module).__name__
            for kind in type(module).__mro__:
                if kind.__name__ in WRAPPERS:
                    raise LaunchError(
                        f"{name} is a {kind.__name__}: build the model itself, "
                        "a launch file says how it is distributed"
                    )
            if run.strategy.held and hasattr(module, "update_and_allocate"):  # AdaLoRA
                raise LaunchError(
                    f"{name} ranks its parameters by whole gradients, and each process holds "
                    f"{run.strategy.held} here: train it under DDP"
                )
            if has_extra_state(module):
                run.note(f"{name} has extra state, which no checkpoint holds: keep it in buffers")

        norms = [name for name, module in model.named_modules() if _follows_batches(module)]
        data = run.train_data if norms else None
        if data and not data.drop_last and (data.size or 1) % data.layout.global_batch_size:
            run.note(
                f"the last step of an epoch may be short: BatchNorm ({listed(norms)}) sees other "
                "micro-batches there on another layout, and trains otherwise; drop_last: true "
                "leaves that step out"
            )

        for name, parameter in model.named_parameters():
            if has_accumulation_hooks(parameter):
                raise LaunchError(
                    f"{name} has a hook behind its gradient (register_post_accumulate_grad_hook), "
                    "which would run before the gradient is averaged over micro-batches and ranks; "
                    "build an optimizer that does it in its step"
                )


def _follows_batches(module: nn.Module) -> bool:
    """Return whether a module normalizes a micro-batch by the micro-batch itself."""
    return module.training and isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)


def has_extra_state(module: nn.Module) -> bool:
    """Return whether a module has state beside tensors (Transformer Engine's fp8 scales)."""
    if type(module).get_extra_state is nn.Module.get_extra_state:
        return False
    state = module.get_extra_state()
    return state is not None and not (hasattr(state, "numel") and state.numel() == 0)
