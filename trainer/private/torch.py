"""The private attributes of torch that this package depends on. Last seen in torch 2.13."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed._functional_collectives import (
    AsyncCollectiveTensor,
    all_to_all_single_autograd,
)
from torch.distributed.distributed_c10d import _get_default_store, _set_pg_timeout, _world
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.parallel import DistributedDataParallel
from torch.optim._muon import _adjust_lr
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

F = TypeVar("F", bound=Callable[..., Any])

# The base class of BatchNorm and InstanceNorm, which keep running statistics. torch has no public
# class for both.
BatchNormBase = _NormBase

# The base class of convolutions. torch has no public class.
ConvolutionBase = _ConvNd

# The values of nested lists and mappings. torch has no public name.
leaves_of = tree_leaves

# The values of nested lists and mappings with the form, and the way back.
flattened, unflattened = tree_flatten, tree_unflatten

# The parts of a tensor exchanged between the processes of a group, with gradients. The public
# function of torch.distributed.nn is deprecated.
exchanged = all_to_all_single_autograd

# The base class of all kinds of dropout. torch has no public class.
DropoutBase = _DropoutNd

# How the rate of torch.optim.Muon depends on the shape of a matrix. Nothing public tells.
adjusted_lr: Callable[..., float] = _adjust_lr

# The part that activation checkpointing adds to the names of parameters.
RECOMPUTED = "_checkpoint_wrapped_module"

# The methods by which torch's layers give themselves first values. The second is of
# nn.MultiheadAttention, which has no public method.
RESET_METHODS = ("reset_parameters", "_reset_parameters")

# -- the tensors of a module ----------------------------------------------------------------------


def own_parameters(module: nn.Module) -> dict[str, nn.Parameter | None]:
    """Return a module's dictionary of parameters, without those of inner modules.

    ``named_parameters`` leaves out names whose parameter is None, and cannot replace a parameter.
    """
    return module._parameters


def own_buffers(module: nn.Module) -> dict[str, Tensor | None]:
    """Return a module's dictionary of buffers, without those of inner modules.

    ``named_buffers(recurse=False)`` leaves out names whose buffer is None, and takes four times as
    long (3 us a module in each step). A buffer is replaced here: ``register_buffer`` forgets that
    the buffer is not saved.
    """
    return module._buffers


def pre_hooks(module: nn.Module) -> Any:
    """Return a module's hooks before a forward pass, in order. Nothing public moves hooks."""
    return module._forward_pre_hooks


def is_persistent(module: nn.Module, key: str) -> bool:
    """Return whether a buffer of a module belongs into checkpoints.

    The public ``state_dict`` makes a dictionary of the whole module and runs hooks.
    """
    return key not in module._non_persistent_buffers_set


# -- compiled modules -----------------------------------------------------------------------------


def is_compiled(module: nn.Module) -> bool:
    """Return whether ``torch.compile`` has wrapped a module, its only child then."""
    return "_orig_mod" in module._modules


def not_compiled(function: F) -> F:
    """Keep a function out of compiled graphs: a graph ends at a call of the function.

    ``torch.compiler.disable`` would import ``torch._dynamo``, which takes a second.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    return function


def import_dynamo() -> None:
    """Import ``torch._dynamo``, as torch's first optimizer does, and ``import torch`` does not."""
    import torch._dynamo  # noqa: F401


def count_graphs() -> tuple[int, int]:
    """Return the graphs of this process, and the breaks. The public ``explain`` traces anew."""
    counters = torch._dynamo.utils.counters
    return counters["stats"]["unique_graphs"], counters["graph_break"].total()


def local_of(tensor: Any) -> Tensor:
    """Return this rank's part of a DTensor.

    The public ``to_local`` takes the way of autograd (3 us, of many tensors in each step). The part
    may still be on the way.
    """
    part: Any = tensor._local_tensor
    return part.wait() if isinstance(part, AsyncCollectiveTensor) else part


# -- gradients and edits --------------------------------------------------------------------------


def gradient_hooks(parameter: Tensor) -> dict[int, Any]:
    """Return a copy of the hooks on a parameter's gradient, which nothing public lists."""
    return dict(parameter._backward_hooks or {})


def share_gradient_hooks(parameter: Tensor, other: Tensor) -> None:
    """Let a parameter have the hooks of another parameter (``_backward_hooks``)."""
    parameter._backward_hooks = other._backward_hooks


def has_accumulation_hooks(parameter: Tensor) -> bool:
    """Return whether hooks, which nothing public lists, follow a parameter's gradient."""
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def edit_count(tensor: Tensor) -> int:
    """Return how often a tensor was changed in place, in 60 ns. Autograd counts for itself."""
    return tensor._version


def storage_number(tensor: Tensor) -> int:
    """Return a number of the memory of a tensor, which an assignment to ``tensor.data`` changes.

    The public ``data_ptr`` of a DTensor is 0.
    """
    return int(tensor.untyped_storage()._cdata)


# -- DDP ------------------------------------------------------------------------------------------


def rebuild_buckets(model: DistributedDataParallel) -> None:
    """Rearrange DDP's exchange buckets by the order in which gradients came.

    DDP itself does so only at the first forward pass behind a backward pass.
    """
    model.reducer._rebuild_buckets()


def numbers_without_gradient(model: DistributedDataParallel) -> list[int]:
    """Return the numbers of the parameters that DDP still waits for after a backward pass.

    Publicly DDP tells only at the next forward pass.
    """
    try:
        model.reducer._check_reducer_finalized()
    except RuntimeError as error:
        found = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        if not found:
            raise
        return [int(number) for number in found[1].split()]
    return []


# -- optimizers -----------------------------------------------------------------------------------


def reads_found_inf(optimizer: Any) -> bool:
    """Return whether a fused kernel skips the step at ``found_inf``, as ``GradScaler`` asks."""
    return bool(getattr(optimizer, "_step_supports_amp_scaling", False))


def switch_off_fused(optimizer: Any) -> None:
    """Let an optimizer step without a fused kernel, and so without a look at ``found_inf``."""
    optimizer._step_supports_amp_scaling = False
    for group in optimizer.param_groups:
        if "fused" in group:
            group["fused"] = False


def mark_stepped(optimizer: Any) -> None:
    """Note that a step was left out on purpose. Otherwise torch warns that the schedule moves."""
    optimizer._opt_called = True


# -- operations on lists of tensors ---------------------------------------------------------------


def norms_of(tensors: list[Tensor]) -> Tensor:
    """Return the norm of each tensor, by a single kernel.

    ``torch.nn.utils.get_total_norm`` looks for devices and dtypes before (20 us).
    """
    return torch.stack(torch._foreach_norm(tensors))


# Multiply tensors in place by a number: ``multiply_all(tensors, factor)``.
multiply_all: Callable[..., None] = torch._foreach_mul_


# -- process groups -------------------------------------------------------------------------------


def process_groups() -> list[dist.ProcessGroup]:
    """Return all process groups of this rank, which no public name lists."""
    return list(_world.pg_map)


# Set how long a rank waits in collectives of a group: ``set_timeout(timeout, group)``. The public
# time-out is an argument of whoever makes the group.
set_timeout: Callable[[timedelta, dist.ProcessGroup], None] = _set_pg_timeout

# Return the store by which the ranks have found each other, without another address.
default_store: Callable[[], Any] = _get_default_store

# Hooks that run before and behind an optimizer's step. No public name lists or copies them.
STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def has_step_hooks(optimizer: Any) -> bool:
    """Return whether hooks are registered on an optimizer's step."""
    return any(getattr(optimizer, name, None) for name in STEP_HOOKS)
