"""The private attributes of DeepSpeed that the strategy depends on, last seen in DeepSpeed 0.19.8.

DeepSpeed documents ``initialize``, the engine's ``forward, backward, step`` and a few functions
that read a parameter. A checkpoint that any layout reads needs more: which range of which flat
tensor belongs to a parameter.

``zero`` below is the engine's ZeRO optimizer (``engine.optimizer``): ``DeepSpeedZeroOptimizer`` in
stages 1 and 2, ``DeepSpeedZeroOptimizer_Stage3`` in stage 3.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

# The method of the ZeRO optimizer that takes a gradient, by stage.
REDUCE_METHODS = {
    1: "process_gradients",
    2: "process_gradients",
    3: "reduce_ready_partitions_and_remove_grads",
}


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the lines that DeepSpeed logs to standard output."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)


def switch_off_op(name: str) -> None:
    """Make DeepSpeed believe that an operator cannot be compiled on this machine.

    The environment variables (``DS_BUILD_...``) act only when DeepSpeed is installed.
    """
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__[name] = False


def reset_linear() -> None:
    """Undo the override of nn.functional.linear that an earlier run of stage 3 has left behind."""
    from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses

    nn.functional.linear = getattr(
        InsertPostInitMethodToModuleSubClasses, "linear_bk", nn.functional.linear
    )


# -- stage 3: parameters --------------------------------------------------------------------------


def is_sharded(parameter: Any) -> bool:
    """Return whether ZeRO-3 has sharded a parameter, by the attribute ``ds_id``."""
    return hasattr(parameter, "ds_id")


def is_taken_away(parameter: Any) -> bool:
    """Return whether a tensor is a parameter of ZeRO-3 without values on this rank now."""
    status = getattr(parameter, "ds_status", None)
    return status is not None and status.name == "NOT_AVAILABLE"


def shard_parameter(init: Any, parameter: nn.Parameter) -> None:
    """Shard a parameter over the ranks. Collective: call on every rank.

    The public context ``zero.Init`` shards a model that is built in the context. A task builds the
    model before the strategy sees the model.
    """
    init._convert_to_zero_parameters([parameter])


def keep_gathered(zero: Any) -> None:
    """Keep the persistent parameters gathered until the step. -1 is the number of no module."""
    for parameter in zero.persistent_parameters:
        parameter.ds_active_sub_modules.add(-1)


def gather_persistent(zero: Any) -> None:
    """Gather the small parameters that stay whole, for ranks that leave a layer out. Collective."""
    persistent = zero.persistent_parameters
    if persistent:
        persistent[0].all_gather(persistent)


def copy_to_model_stage_3(zero: Any) -> None:
    """Copy full-precision values to the parameters, and free persistent parameters, now stale."""
    zero._partition_all_parameters()
    for group in range(len(zero.fp32_partitioned_groups_flat)):
        zero._reassign_or_swap_out_partitioned_parameters(group)


def forget_released(zero: Any) -> None:
    """Forget which parameters each layer frees, unless the engine knows the order of the layers.

    Call after each backward pass. The engine records the order during a pass, and caches which
    parameters each layer of the order frees. The cache outlives the order: after forward passes
    alone, as in an evaluation before the first step, each layer would be freed in each forward pass
    and gathered again in the backward pass.
    """
    coordinator = zero.parameter_offload.get_param_coordinator()
    if not coordinator.is_complete_trace():
        decorated = type(coordinator)._PartitionedParameterCoordinator__params_to_release
        inspect.getclosurevars(decorated).nonlocals["func"].cache_clear()


# -- full-precision values ------------------------------------------------------------------------


def stepped_groups(zero: Any) -> list[Tensor]:
    """Return this rank's slices of the groups, which torch's optimizer steps."""
    in_stage_3: list[Tensor] = getattr(zero, "fp32_partitioned_groups_flat", [])
    return in_stage_3 or zero.single_partition_of_fp32_groups


def flat_groups(zero: Any) -> dict[Tensor, tuple[Tensor, int]]:
    """Return, by trainable parameter, the tensor that torch's optimizer steps in stage 1 or 2.

    This tensor is this rank's slice, one of equal slices, of the group's parameters laid end to
    end. With the place of the parameter among these.
    """
    groups = zip(
        zero.round_robin_bit16_groups,
        zero.round_robin_bit16_offsets,
        zero.single_partition_of_fp32_groups,
        strict=True,
    )
    return {
        parameter: (flat, offset)
        for parameters, offsets, flat in groups
        for parameter, offset in zip(parameters, offsets, strict=True)
    }


def flat_group_stage_3(zero: Any, parameter: Any) -> tuple[Tensor, int]:
    """Return the tensor that torch's optimizer steps in stage 3, and the offset of a parameter."""
    group, offset, _ = zero.grad_position[zero.get_param_id(parameter)]
    return zero.fp32_partitioned_groups_flat[group], int(offset)


# -- gradients ------------------------------------------------------------------------------------


def accumulate_in(zero: Any, dtype: torch.dtype) -> None:
    """Make stage 1 add up gradients of micro-batches in another dtype, as the engine does for fp16.

    A configuration with float32 beside bf16 makes the engine take an optimizer of another layout.
    """
    zero.gradient_accumulation_dtype = dtype
    zero.use_separate_grad_accum = True
    zero.use_grad_accum_attribute = True


def complete_offloaded_gradients(zero: Any, stage: int) -> None:
    """Bring all gradients of a step to an offloaded optimizer, before the step.

    The engine brings those of parameters that the last micro-batch used (``norm_for_param_grads``).
    """
    if not (zero.offload_optimizer if stage == 3 else zero.cpu_offload):
        return
    if stage == 3:
        reached = zero._offload_boundary_param_ids
        bring = zero._finalize_offload_gradient_accumulation
    else:
        reached = zero._offload_accumulated_param_ids
        bring = zero._finalize_cpu_offload_gradient_accumulation
    if len(zero.norm_for_param_grads) < len(reached):
        bring()


def clear_gradients(zero: Any, stage: int) -> None:
    """Set the gradients of a step to zero, after the step.

    The engine overwrites the gradients of parameters that a backward pass reaches. A layer that the
    next step leaves out would be stepped with a gradient of this step: in stage 3, and of an
    offloaded optimizer in each stage.
    """
    kept = list(getattr(zero, "accumulated_grads_in_cpu", {}).values())
    if stage == 3:
        kept = [zero.grad_partitions_flat_buffer]
    kept += [group.grad for group in stepped_groups(zero) if group.grad is not None]
    for gradient in kept:
        gradient.zero_()


def has_accumulated(parameter: Any) -> bool:
    """Return whether a parameter has a gradient of earlier micro-batches."""
    return getattr(parameter, "grad_accum", None) is not None


def take_over_backward_start(engine: Any) -> Callable[[], None]:
    """Return the function that begins the engine's backward pass, which no longer begins by itself.

    A hook on the model's output would begin the pass. A task may take gradients itself
    (``torch.autograd.grad``): the engine would divide these by the accumulation steps, and end the
    pass.
    """
    begin: Callable[[], None] = engine._backward_prologue
    engine._backward_prologue = lambda: None
    engine._backward_prologue_per_tensor = lambda gradient: gradient
    return begin


def remove_leaf_hooks(zero: Any) -> None:
    """Remove the hooks that look for missing gradients of a leaf module.

    The whole model is the leaf module here: the hooks would look before the gradients have come.
    """
    for hook in getattr(zero, "_leaf_module_hooks", ()):
        hook.remove()
