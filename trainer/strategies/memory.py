"""The bytes that a rank holds under each strategy, by formulas: docs/strategies.md derives them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn

    from .base import Strategy

LARGEST_BUCKET = 500_000_000  # DeepSpeed's default, in elements: 2 GB of float32, for any model


@dataclass(frozen=True)
class Layout:
    """The layout of a model's states under a launch file of ``accel_configs/``.

    Args:
        stage: 0 copies all states to every rank. 1 divides the optimizer state among the ranks, 2
            the gradients as well, 3 the parameters as well.
        is_zero: under mixed precision DeepSpeed's engine computes with 16-bit parameters, and the
            optimizer keeps a full-precision copy.
        offloads: the states lie in host memory.
    """

    stage: int = 0
    is_zero: bool = False
    offloads: bool = False


# By the name of the launch file. The fastest layout stands first.
LAYOUTS = {
    "ddp": Layout(),
    "zero1": Layout(1, is_zero=True),
    "zero2": Layout(2, is_zero=True),
    "fsdp": Layout(3),
    "zero3": Layout(3, is_zero=True),
    "zero3_offload": Layout(3, is_zero=True, offloads=True),
}
ALONE = {"single": Layout(), "zero3_offload": LAYOUTS["zero3_offload"]}


@dataclass(frozen=True)
class States:
    """The bytes of a rank, without activations.

    Args:
        parameters, gradients, optimizer: the model states.
        buffers: an upper bound of exchange buffers and gathered layers.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int

    @property
    def total(self) -> int:
        """Return the bytes of the model states."""
        return self.parameters + self.gradients + self.optimizer


def states_of(
    layout: Layout,
    trainable: int,
    world_size: int,
    *,
    frozen_bytes: int = 0,
    precision: str = "bf16",
    slots: int = 2,
    accumulates: bool = False,
    has_sums: bool = False,
    layers: int = 1,
) -> States:
    """Compute the bytes that a rank holds.

    Args:
        trainable: elements of the trainable parameters.
        frozen_bytes: bytes of all frozen parameters.
        precision: ``no``, ``bf16`` or ``fp16``.
        slots: full-precision tensors of the optimizer for each parameter. Adam has 2.
        accumulates: several micro-batches make an optimizer step.
        has_sums: each rank adds up whole gradients (``Strategy.sums_exactly``).
        layers: number of equal layers, of which sharding gathers a few at once.
    """
    stage, is_zero = layout.stage, layout.is_zero
    width = 2 if is_zero and precision != "no" else 4

    parameters = width * trainable + frozen_bytes
    if stage == 3:
        parameters //= world_size

    # Before the last micro-batch FSDP2 keeps whole gradients. DDP keeps gradients beside buckets.
    gradients = (4 if accumulates else width) * trainable
    if stage >= 2 and (is_zero or not accumulates):
        gradients //= world_size
    elif stage == 0 and accumulates and world_size > 1:
        gradients *= 2

    if has_sums:  # in float64, beside this rank's rounded gradients or the buckets of DDP
        gradients = 8 * trainable * (is_zero or stage == 0 or accumulates)
        gradients += 4 * trainable // (world_size if stage else 1)

    if layout.offloads:  # the full-precision gradients of the optimizer in host memory
        gradients += 4 * trainable // world_size

    optimizer = 4 * trainable * (slots + is_zero)
    if stage >= 1:
        optimizer //= world_size

    buffers = 0
    if is_zero:  # a bucket of gradients, and a copy on the way
        buffers += 8 * min(trainable, LARGEST_BUCKET)
    if stage == 3:  # two gathered layers, and the gradients of a layer
        buffers += 3 * (4 * trainable + frozen_bytes) // layers
    if stage == 0 and precision != "no":  # the 16-bit copies of autocast
        buffers += 2 * trainable
    return States(parameters, gradients, optimizer, buffers)


def states_of_run(strategy: Strategy, model: nn.Module, trainable: int, slots: int) -> States:
    """Compute the bytes that a rank holds, of a model that is not prepared yet."""
    plan = strategy.plan
    layout = LAYOUTS.get(plan.strategy, Layout())
    # DeepSpeed's engine casts frozen parameters too.
    width = 2 if layout.is_zero and plan.mixed_precision != "no" else 8
    return states_of(
        replace(layout, offloads=layout.is_zero and strategy.steps_on_cpu(plan)),
        trainable,
        plan.world_size // plan.fsdp.get("dp_replicate_size", 1),
        frozen_bytes=sum(
            p.numel() * min(width, p.itemsize) for p in model.parameters() if not p.requires_grad
        ),
        precision=plan.mixed_precision,
        slots=slots,
        accumulates=plan.accumulation_steps > 1 and not plan.sync_each_batch,
        has_sums=strategy.sums_exactly,
    )
