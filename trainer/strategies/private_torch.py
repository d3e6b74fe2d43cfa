"""The private attributes of torch and Accelerate that strategies depend on.

Each function says why no public name serves, and in which release the attribute was last seen.
``tests/unit/strategies/test_private_torch.py`` names the attribute that a new release has removed.
"""

from __future__ import annotations

import logging
import re
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel

# The base class of BatchNorm and InstanceNorm, which keep running statistics. torch has no public
# class for both. Last seen in torch 2.13.
BatchNormBase = _NormBase


class GatheredParameter(NamedTuple):
    """A parameter of an FSDP2 unit.

    Args:
        name: its name in the model that was given to ``fully_shard``.
        module: the module that has it.
        key: its name in that module.
        unsharded: the whole parameter that the unit is gathered to while it computes; None before
            the first forward pass. It stays the same object; its memory is freed after each layer.
    """

    name: str
    module: nn.Module
    key: str
    unsharded: nn.Parameter | None


def gathered_by(unit: nn.Module) -> list[GatheredParameter]:
    """List the parameters that one FSDP2 unit gathers.

    Public names give the shards only; edits of what is gathered are lost, and have to be noticed.
    ``_get_fsdp_state`` with ``_fsdp_param_groups`` (torch 2.13; ``_fsdp_param_group`` in 2.11).
    """
    state: Any = unit._get_fsdp_state()  # type: ignore[operator]
    if hasattr(state, "_fsdp_param_groups"):
        groups = state._fsdp_param_groups
    else:
        groups = (state._fsdp_param_group,)

    found = []
    for group in groups:
        if not group:
            continue
        for parameter in group.fsdp_params:
            place = parameter._module_info
            unsharded = getattr(parameter, "_unsharded_param", None)
            name = parameter._param_fqn
            found.append(GatheredParameter(name, place.module, place.param_name, unsharded))
    return found


def local_shape_and_offset(parameter: Any) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of this rank's part of a DTensor, and where in the whole it begins.

    Tensor parallelism divides rows before FSDP2 does, in an order that only torch knows, and there
    is no public function for it. ``torch.distributed.tensor._utils``, last seen in torch 2.13.
    """
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    return compute_local_shape_and_global_offset(
        parameter.shape, parameter.device_mesh, parameter.placements
    )


def recomputed(module: nn.Module, *, offload: bool) -> nn.Module:
    """Wrap a module so that its backward pass recomputes it, with the random numbers of before.

    Args:
        offload: keep the inputs that the second pass needs in host memory.

    torch's FSDP documentation itself uses these wrappers of
    ``torch.distributed.algorithms._checkpoint``; last seen in torch 2.13.
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        checkpoint_wrapper,
        offload_wrapper,
    )

    wrapped: nn.Module = checkpoint_wrapper(module)
    if offload:
        wrapped = offload_wrapper(wrapped)
    return wrapped


def silence_redistribution() -> None:
    """Silence torch's warning that a tensor on a mesh of two dimensions is gathered in two steps.

    The logger of ``torch.distributed.tensor._redistribute``, last seen in torch 2.13. Whoever
    gathers whole tensors under tensor parallelism cannot avoid what it warns of.
    """
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)


def gradient_hooks(parameter: Tensor) -> dict[int, Any]:
    """Return a copy of the hooks on a parameter's gradient.

    ``Tensor.register_hook`` is public, but nothing lists the hooks. ``_backward_hooks``, last seen
    in torch 2.13.
    """
    return dict(parameter._backward_hooks or {})


def share_gradient_hooks(parameter: Tensor, other: Tensor) -> None:
    """Let a parameter have the hooks of another one (``_backward_hooks``, torch 2.13)."""
    parameter._backward_hooks = other._backward_hooks


def sequence_number(node: Any) -> int:
    """Return when an operation of autograd's graph was recorded; the last one runs first.

    ``_sequence_nr`` of graph nodes, last seen in torch 2.13. It is the order of the backward pass,
    which nothing public tells before the pass.
    """
    return int(node._sequence_nr())


def rebuild_buckets(model: nn.parallel.DistributedDataParallel) -> None:
    """Rearrange DDP's exchange buckets by the order in which gradients came.

    DDP does it by itself, but only at the first forward pass behind a backward pass.
    ``Reducer._rebuild_buckets``, last seen in torch 2.13.
    """
    model.reducer._rebuild_buckets()


def reads_found_inf(optimizer: Any) -> bool:
    """Return whether an optimizer's fused kernel skips the step where ``found_inf`` is set.

    ``_step_supports_amp_scaling``, by which ``GradScaler`` decides; last seen in torch 2.13.
    """
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def mark_stepped(optimizer: Any) -> None:
    """Note that the optimizer had its turn, where a step was left out on purpose.

    Otherwise torch warns that the schedule moves before the optimizer does. ``_opt_called``, last
    seen in torch 2.13.
    """
    optimizer._opt_called = True


def norms_of(tensors: list[Tensor]) -> Tensor:
    """Return the norm of each tensor, by one kernel for all.

    ``torch.nn.utils.get_total_norm`` does it too, and looks for devices and dtypes before (20 us).
    ``torch._foreach_norm``, last seen in torch 2.13.
    """
    return torch.stack(torch._foreach_norm(tensors))


def multiply_all(tensors: list[Tensor], factor: Tensor) -> None:
    """Multiply tensors in place by one number (``torch._foreach_mul_``, torch 2.13)."""
    torch._foreach_mul_(tensors, factor)


def copy_all(targets: list[Tensor], sources: list[Tensor]) -> None:
    """Copy each source into its target (``torch._foreach_copy_``, torch 2.13)."""
    torch._foreach_copy_(targets, sources)


def register_model(accelerator: Any, model: nn.Module) -> None:
    """Make Accelerate treat a model as one that its own ``prepare`` has made.

    ``Accelerator._models``, last seen in accelerate 1.15. It is what ``free_memory`` forgets, and
    ``prepare_model`` would wrap the model again.
    """
    accelerator._models.append(model)


def numbers_without_gradient(model: DistributedDataParallel) -> list[int]:
    """Return the numbers of the parameters that DDP still waits for after a backward pass.

    ``reducer._check_reducer_finalized`` is all that says so before the next forward pass. Seen in
    torch 2.13.
    """
    try:
        model.reducer._check_reducer_finalized()
    except RuntimeError as error:
        found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        if found is None:
            raise
        return [int(number) for number in found[1].split()]
    return []
