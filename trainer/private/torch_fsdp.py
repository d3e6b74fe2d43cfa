"""The private attributes of torch's FSDP2 that its strategy depends on. Last seen in torch 2.13."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor


def gathered_by(unit: nn.Module) -> list[tuple[str, nn.Parameter | None]]:
    """List the whole parameters that an FSDP2 unit is gathered to, with their names in the model.

    None before the first forward pass. A parameter stays the same object, whose memory is freed
    after each layer. Public names give the shards only.
    """
    return [
        (parameter._param_fqn, getattr(parameter, "_unsharded_param", None))
        for group in _parameter_groups(unit)
        for parameter in group.fsdp_params
    ]


def holds_gradients(unit: nn.Module) -> bool:
    """Return whether an FSDP2 unit holds gradients that no exchange has taken."""
    return any(
        parameter.unsharded_accumulated_grad is not None
        or getattr(getattr(parameter, "_unsharded_param", None), "grad", None) is not None
        for group in _parameter_groups(unit)
        for parameter in group.fsdp_params
    )


def end_pass(unit: Any) -> None:
    """End the pass of an FSDP2 unit. ``reset_iter_state`` fails before the first forward pass."""
    state = unit._get_fsdp_state()
    state._state_ctx.iter_forward_root = None
    for part in (state, *_parameter_groups(unit)):
        part._training_state = part._training_state.IDLE


def complete_sums(unit: nn.Module) -> None:
    """Give parameters of an FSDP2 unit that earlier micro-batches left out a sum of zeros.

    In the last micro-batch a unit reduces the sums of gradients, in the reduce dtype, beside the
    gradients of parameters without a sum, in the compute dtype. torch 2.13 then ends in an
    AssertionError about a uniform dtype (pytorch#196996).
    """
    for group in _parameter_groups(unit):
        sums = [parameter.unsharded_accumulated_grad for parameter in group.fsdp_params]
        dtype = next((own.dtype for own in sums if own is not None), None)
        if not dtype:
            continue
        for parameter, own in zip(group.fsdp_params, sums, strict=True):
            whole = parameter._unsharded_param
            if own is None and whole.requires_grad:
                parameter.unsharded_accumulated_grad = torch.zeros_like(whole, dtype=dtype)


def read_whole_numbers() -> None:
    """Let ``.item()`` and ``float()`` of a DTensor read the number of all ranks, collectively.

    torch 2.13 reads the number of this rank's part: the norm of a shard, and a part of a sum.
    """
    dispatcher: Any = DTensor._op_dispatcher
    read = torch.ops.aten._local_scalar_dense.default
    dispatcher._custom_op_handlers[read] = lambda _, args, kwargs: args[0].full_tensor().item()


def _parameter_groups(unit: Any) -> list[Any]:
    """Return the groups of an FSDP2 unit's parameters. torch 2.11 has another name."""
    state = unit._get_fsdp_state()
    if hasattr(state, "_fsdp_param_groups"):
        return list(state._fsdp_param_groups)
    group = state._fsdp_param_group
    return [group] if group else []


def recomputed(module: nn.Module, *, offload: bool) -> nn.Module:
    """Wrap a module so that the backward pass recomputes the module, with the same random numbers.

    torch's documentation of FSDP uses these wrappers. With ``offload`` the inputs of the second
    pass are kept in host memory.
    """
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
        checkpoint_wrapper,
        offload_wrapper,
    )

    wrapped: nn.Module = checkpoint_wrapper(module)
    if offload:
        wrapped = offload_wrapper(wrapped)
    return wrapped
