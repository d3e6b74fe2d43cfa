"""The arithmetic of ``same_bits: true``, and the parts of a run that the mode cannot hold with.

The gradient of a micro-batch has the same bits wherever the micro-batch is computed, if its random
numbers belong to the micro-batch and gradients meet in the same order (``borders.py``). Gradients
add up in float64, which holds a sum of float32 numbers exactly unless the gradients of an element
differ by more than 2**29 / micro-batches, and the sum is rounded once. So no order plays a part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import inf
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from ..errors import DataError, LaunchError
from ..text import listed
from .digests import at_a_time

if TYPE_CHECKING:
    from ..run_plan import Plan


def grouped(tensors: Iterable[Tensor], elements: int) -> Iterator[list[Tensor]]:
    """Yield tensors in lists of so many elements and more. The last may have fewer."""
    group: list[Tensor] = []
    for tensor in tensors:
        group.append(tensor)
        if sum(map(Tensor.numel, group)) >= elements:
            yield group
            group = []
    if group:
        yield group


def exact_norm(parts: list[Tensor], elements: int, group: Any) -> Tensor:
    """Return the norm of tensors, the same in every order and division. Collective.

    Squares are cut into two multiples of powers of two that all ranks share, so their sums in
    float64 are exact. The rest is below 2**-30 of the sum.

    Args:
        parts: this rank's, in float32.
        elements: of all ranks.
        group: the ranks over which the tensors are divided. None if each has whole tensors.
    """
    device = parts[0].device
    largest = get_total_norm([part for part in parts if part.numel()], inf).to(device).double()
    if group:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    if not largest.isfinite() or largest == 0:
        return largest.float()

    above = 4.0 ** int(torch.frexp(largest).exponent)  # larger than each square
    digits = 2.0 ** (52 - elements.bit_length())
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    size = at_a_time(device)
    pieces = (piece for part in parts for piece in torch.split(part.reshape(-1), size))
    for small in grouped(pieces, size):
        rest = torch.cat(small).double().square_()
        for level in (0, 1):
            # Adding and subtracting 1.5 * 2**52 grids rounds to a multiple of the grid.
            shift = 1.5 * 2.0**52 * above / digits ** (level + 1)
            rounded = (rest + shift).sub_(shift)
            sums[level] += rounded.sum()
            rest.sub_(rounded)
    if group:
        dist.all_reduce(sums, group=group)
    return sums.sum().sqrt().float()


def rounded_additions(sums: Tensor, more: Tensor) -> int:
    """Count the elements whose sum is no float64, by the error of each addition (TwoSum)."""
    total = sums + more
    added = total - sums
    error = (sums - (total - added)) + (more - added)
    return int(error.count_nonzero())


# -- refusals -------------------------------------------------------------------------------------


def refuse_settings(plan: Plan, *, offloads: bool) -> None:
    """Raise ``ConfigError`` if the mode cannot hold with a setting."""
    # Their sums are other sums, or no test has shown that they keep bits.
    are_wrong = {
        "mixed_precision": plan.mixed_precision == "fp16",
        "reduce_dtype": plan.reduce_dtype == "bf16",
        "find_unused_parameters": plan.find_unused_parameters,
        "sync_each_batch": plan.sync_each_batch,
        "compile": plan.compile,
        "context_parallel": plan.context_parallel > 1,
        "strategy.offload": offloads,
        "fsdp.activation_checkpointing": plan.fsdp.get("activation_checkpointing"),
    }
    for key, is_wrong in are_wrong.items():
        if is_wrong:
            rule = "not beside same_bits: true, which does not hold with it; leave out one of them"
            raise plan.origin(key).error(rule, getattr(plan, key, True))


def refuse_parts(model: nn.Module) -> None:
    """Raise ``LaunchError`` if the mode cannot hold with a part of a model."""
    trainable = [(name, own) for name, own in model.named_parameters() if own.requires_grad]
    others = [name for name, own in trainable if own.dtype != torch.float32]
    if others:
        raise LaunchError(f"same_bits: {listed(others)} must be float32, whose sums float64 holds")
    if trainable[0][1].is_cuda and not torch.are_deterministic_algorithms_enabled():
        raise LaunchError("same_bits: GPUs need deterministic: true, without which sums vary")


def refuse_changed_buffers(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Raise ``DataError`` if forward passes of the first step have changed a buffer."""
    buffers = dict(model.named_buffers())
    changed = [name for name, values in before.items() if not values.equal(buffers[name])]
    if changed:
        raise DataError(
            f"same_bits: forward passes change {listed(changed)}, and each rank makes other "
            "passes: take another norm (GroupNorm), leave the buffer out, or same_bits"
        )
