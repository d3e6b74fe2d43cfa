"""The arithmetic of ``same_bits: true``: the same bits on every layout that deals micro-batches.

The gradient of a micro-batch has the same bits wherever the micro-batch is computed, if its random
numbers belong to the micro-batch and gradients meet in the same order (``borders.py``). Gradients
add up in float64, which holds a sum of float32 numbers exactly unless the gradients of an element
differ by more than 2**29 / micro-batches, and the sum is rounded once. So no order plays a part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from ..data.now import now
from ..data.rng import seed_global_generators
from ..data.seeds import seed_of
from ..errors import DataError, LaunchError
from ..private.torch import BatchNormBase
from ..text import listed
from .borders import add_borders
from .cast_weights import CastWeights

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..run_plan import Plan

# The last number of a micro-batch's seed.
_OF_MICRO_BATCHES = 2
# Elements of a pass that stay in the cache of a CPU. A GPU takes large parts.
_AT_A_TIME = {"cpu": 1 << 15}
_ON_GPU = 1 << 24
_BUCKET = 1 << 22  # elements


class SameBits:
    """Sums, norm and random numbers of a strategy's steps.

    Args:
        plan: of the run.
        rank: of this process.
        offloads: whether the optimizer steps on the CPU instead of a GPU.

    Attributes:
        micro_batches: of this rank that were begun in the step.
        watch: is called with each parameter and its gradient of a micro-batch, if a strategy has
            set it.
        cast: casts the weights in each micro-batch, if the strategy's engine does not.
        counts_rounded: whether to count the additions of this rank, and those that float64 has
            rounded (``additions`` and ``rounded``).
        watch_step: is called with the gradients of a step, and whether they are whole.

    Raises:
        ConfigError: the mode cannot hold with a setting of the plan.
    """

    def __init__(self, plan: Plan, rank: int, *, offloads: bool) -> None:
        refuse_settings(plan, offloads=offloads)
        if plan.device == "cpu":
            # Kernels cut sums by threads, of which launchers give several processes fewer.
            torch.set_num_threads(1)
        self._plan, self._rank = plan, rank
        self._model = nn.Module()  # until there is one
        self._elements = 0
        self._sums: dict[Any, Tensor] = {}
        self.micro_batches = 0
        self._first_buffers: dict[str, Tensor] | None = {}
        self.cast: CastWeights | None = None
        self.watch: Callable[[Any, Tensor], object] | None = None
        self.watch_step: Callable[[list[Tensor], bool], object] = lambda gradients, is_whole: None
        self.counts_rounded = False
        self.additions = self.rounded = 0

    # -- set-up -----------------------------------------------------------------------------------

    def check(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Raise ``LaunchError`` if the mode cannot hold with a part of a model or an optimizer."""
        refuse_parts(model, optimizer)
        self._elements = sum(p.numel() for p in model.parameters() if p.requires_grad)
        on_gpu = self._plan.device == "cuda"
        if on_gpu and not torch.are_deterministic_algorithms_enabled():
            raise LaunchError("same_bits: GPUs need deterministic: true, without which sums vary")

    def enter(self, model: nn.Module) -> None:
        """Make a wrapped model compute as under every other strategy."""
        self._model = model
        # In evaluation ZeRO-3 computes without torch's fused encoder layers.
        torch.backends.mha.set_fastpath_enabled(False)
        add_borders(model)

    # -- one step ---------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a micro-batch: its random numbers belong to it, not to the rank."""
        moment = now()
        number = self.micro_batches * self._plan.world_size + self._rank
        entropy = moment.seed, moment.step, number, _OF_MICRO_BATCHES
        seed_global_generators(*entropy)  # accelerate's set_seed takes 0.25 ms
        if self._plan.device == "cuda":
            torch.cuda.manual_seed(seed_of(*entropy))
        if self._first_buffers == {}:
            named = self._model.named_buffers()
            self._first_buffers = {name: buffer.clone() for name, buffer in named}
        self.micro_batches += 1
        if self.cast is not None:
            self.cast.begin()

    @property
    def holds_gradients(self) -> bool:
        """Return whether there are sums of this step."""
        return bool(self._sums)

    def take(self, parameter: Any) -> None:
        """Add a parameter's gradient to this rank's sum, and drop the gradient."""
        gradient = parameter.grad
        if gradient is None:
            return
        parameter.grad = None
        if self.watch is not None:
            self.watch(parameter, gradient)
        known = self._sums.get(parameter)
        if known is None:
            self._sums[parameter] = gradient.double()
            return
        if self.counts_rounded:
            self.additions += known.numel()
            self.rounded += rounded_additions(known, gradient)
        known.add_(gradient)

    def take_all(self, parameters: Iterable[Any]) -> None:
        """Add the gradients of parameters to this rank's sums, and drop the gradients."""
        for parameter in parameters:
            self.take(parameter)

    def reduced(self, parameters: Sequence[Any]) -> list[Tensor]:
        """Return the sums of whole gradients over all ranks, rounded once. Collective.

        Sums travel in buckets: an exchange of each parameter would wait for each.
        """
        if self._plan.world_size == 1:
            return [self._pop(parameter).float() for parameter in parameters]
        found: list[Tensor] = []
        bucket: list[Tensor] = []
        for number, parameter in enumerate(parameters, 1):
            bucket.append(self._pop(parameter))
            if number == len(parameters) or sum(map(Tensor.numel, bucket)) > _BUCKET:
                flat = torch.cat([own.view(-1) for own in bucket])
                dist.all_reduce(flat)
                parts = torch.split(flat.float(), [own.numel() for own in bucket])
                found += [part.view_as(own) for part, own in zip(parts, bucket, strict=True)]
                bucket = []
        return found

    def _pop(self, parameter: Any) -> Tensor:
        """Take this rank's sum, which is zero for a parameter that no micro-batch has used."""
        own = self._sums.pop(parameter, None)
        if own is None:  # an engine may have taken the values away, but not the shape
            shape = getattr(parameter, "ds_shape", parameter.shape)
            own = torch.zeros(shape, dtype=torch.float64, device=parameter.device)
        return own.contiguous()

    def end(self, gradients: list[Tensor], group: Any) -> Tensor:
        """End the micro-batches of a step, and return the norm of the gradients. Collective.

        Args:
            gradients: this rank's parts, in float32. Negative zeros become zeros: a rank that had
                nothing to compute has added zeros.
            group: the ranks over which the gradients are divided. None if each has whole tensors.

        Raises:
            DataError: forward passes of the first step have changed a buffer.
        """
        self.micro_batches = 0
        if self.cast is not None:
            self.cast.end()
        if self._first_buffers:
            refuse_changed_buffers(self._model, self._first_buffers)
        self._first_buffers = None
        parts = [gradient for gradient in gradients if gradient.numel()]
        for part in parts:
            part.add_(0.0)
        self.watch_step(gradients, group is None)
        return exact_norm(parts, self._elements, group)


def exact_norm(parts: list[Tensor], elements: int, group: Any) -> Tensor:
    """Return the norm of tensors, the same in every order and division. Collective.

    Squares are cut into two multiples of powers of two that all ranks share, so their sums in
    float64 are exact. The rest is below 2**-30 of the sum.

    Args:
        parts: this rank's, in float32, without empty tensors.
        elements: of all ranks.
        group: the ranks over which the tensors are divided. None if each has whole tensors.
    """
    largest = get_total_norm(parts, inf).double()
    if group is not None:
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
    if not largest.isfinite() or largest == 0:
        return largest.float()

    above = 4.0 ** int(torch.frexp(largest).exponent)  # larger than each square
    digits = 2.0 ** (52 - elements.bit_length())
    sums = torch.zeros(2, dtype=torch.float64, device=largest.device)
    for part in _cut(parts):
        rest = part.double().square_()
        for level in (0, 1):
            # Adding and subtracting 1.5 * 2**52 grids rounds to a multiple of the grid.
            shift = 1.5 * 2.0**52 * above / digits ** (level + 1)
            rounded = (rest + shift).sub_(shift)
            sums[level] += rounded.sum()
            rest.sub_(rounded)
    if group is not None:
        dist.all_reduce(sums, group=group)
    return sums.sum().sqrt().float()


def rounded_additions(sums: Tensor, more: Tensor) -> int:
    """Count the elements whose sum is no float64, by the error of each addition (TwoSum)."""
    total = sums + more
    added = total - sums
    error = (sums - (total - added)) + (more - added)
    return int(error.count_nonzero())


def _cut(tensors: list[Tensor]) -> Iterator[Tensor]:
    """Yield the elements of tensors in flat parts of a size that the device likes."""
    if not tensors:
        return
    size = _AT_A_TIME.get(tensors[0].device.type, _ON_GPU)
    small = [tensor.reshape(-1) for tensor in tensors if tensor.numel() <= size]
    large = [tensor.reshape(-1) for tensor in tensors if tensor.numel() > size]
    for flat in (*([torch.cat(small)] if small else []), *large):
        yield from torch.split(flat, size)


# -- refusals -------------------------------------------------------------------------------------


def refuse_settings(plan: Plan, *, offloads: bool) -> None:
    """Raise ``ConfigError`` if the mode cannot hold with a setting."""
    for key, value, is_wrong, reason in _settings(plan, offloads=offloads):
        if is_wrong:
            rule = f"not beside same_bits: true: {reason}; leave one of the two out"
            raise plan.origin(key).named(key).error(rule, value)


def _settings(plan: Plan, *, offloads: bool) -> Iterator[tuple[str, object, bool, str]]:
    """Yield the key of each setting that the mode cannot hold with, its value, and the reason."""
    yield (
        "mixed_precision",
        plan.mixed_precision,
        plan.mixed_precision == "fp16",
        "the scale of the loss follows each layout's gradients",
    )
    yield (
        "find_unused_parameters",
        True,
        plan.find_unused_parameters,
        "engines then reduce by another way",
    )
    yield "reduce_dtype", "bf16", plan.reduce_dtype == "bf16", "gradients are rounded on each rank"
    yield "sync_each_batch", True, plan.sync_each_batch, "each exchange rounds the sum"
    shares = plan.context_parallel
    yield "context_parallel", shares, shares > 1, "parts of a row add up in another order"
    yield "compile", True, plan.compile, "compiled layers are not tested for the same bits"
    yield "strategy", None, offloads, "offloaded steps are not tested for the same bits"
    recomputes = bool(plan.fsdp.get("activation_checkpointing"))
    yield (
        "fsdp.activation_checkpointing",
        True,
        recomputes,
        "recomputed layers are not tested for the same bits",
    )


def refuse_parts(model: nn.Module, optimizer: Optimizer) -> None:
    """Raise ``LaunchError`` if the mode cannot hold with a part of a model or an optimizer."""
    statistics = [
        name
        for name, module in model.named_modules()
        if isinstance(module, BatchNormBase) and module.training and module.track_running_stats
    ]
    if statistics:
        raise LaunchError(
            f"same_bits: {listed(statistics)} keeps statistics of the batches that its own rank "
            "computes: take another norm (GroupNorm), hold it in evaluation, or leave same_bits out"
        )
    wide = [
        name
        for name, own in model.named_parameters()
        if own.requires_grad and own.dtype != torch.float32
    ]
    if wide:
        raise LaunchError(f"same_bits: {listed(wide)} must be float32, whose sums float64 holds")
    if any(group.get("fused") for group in optimizer.param_groups):
        raise LaunchError(
            "same_bits: a fused optimizer rounds the last elements of a tensor otherwise, and "
            "layouts cut tensors: build it with fused=False"
        )


def refuse_changed_buffers(model: nn.Module, before: Mapping[str, Tensor]) -> None:
    """Raise ``DataError`` if forward passes of the first step have changed a buffer."""
    buffers = dict(model.named_buffers())
    changed = [name for name, values in before.items() if not values.equal(buffers[name])]
    if changed:
        raise DataError(
            f"same_bits: forward passes change {listed(changed)}, and each rank makes other "
            "passes: leave the buffer out, or same_bits"
        )
