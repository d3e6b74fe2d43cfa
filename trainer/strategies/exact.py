"""The part of ``same_bits`` that all strategies share, mixed into the class of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from ..data.now import now
from ..data.rng import seed_global_generators
from ..data.seeds import seed_of
from ..private.torch import switch_off_fused
from ..text import size
from .base import Strategy
from .borders import add_borders
from .same_bits import (
    exact_norm,
    grouped,
    refuse_changed_buffers,
    refuse_parts,
    refuse_settings,
    rounded_additions,
)

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer

    from ..run_plan import Plan

# The last number of a micro-batch's seed.
_OF_MICRO_BATCHES = 2
_BUCKET = 1 << 22  # elements


class Exact(Strategy):
    """A strategy whose gradients add up exactly.

    Attributes:
        micro_batches: of this rank that were begun in the step.
        note: is called with the name and the whole gradient of each parameter in a micro-batch.
        note_step: is called with this rank's parts of the gradients of a step.
        counts: the ``additions`` of this rank, and those that float64 has ``rounded``. None: they
            are not counted.
    """

    micro_batches = 0
    _buffers: dict[str, Tensor] | None = None  # before the first step
    sums_exactly = True
    note: Callable[[str, Tensor], object] | None = None
    counts: Counter[str] | None = None

    def __init__(self, plan: Plan, accelerator: Accelerator) -> None:
        refuse_settings(plan, offloads=self.steps_on_cpu(plan))
        if plan.device == "cpu":
            # Kernels cut sums by threads, of which launchers give several processes fewer.
            torch.set_num_threads(1)
        super().__init__(plan, accelerator)
        self.known_errors = {
            **self.known_errors,
            "is a view and is being modified inplace": (
                "a layer changes its input in place, which same_bits forbids: write x = x + 1, not "
                "x += 1"
            ),
        }
        self.note_step: Callable[[list[Tensor]], object] = lambda gradients: None
        self._sums: dict[str, Tensor] = {}

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        refuse_parts(model)
        switch_off_fused(optimizer)  # which rounds a tensor's last elements otherwise
        self._elements = sum(p.numel() for p in model.parameters() if p.requires_grad)
        super().prepare(model, optimizer)
        held = size(8 * self._elements)
        self.notices = [
            *self.notices,
            f"same_bits: whole gradients add up in float64, at most {held} per rank",
        ]
        # In evaluation ZeRO-3 computes without torch's fused encoder layers.
        torch.backends.mha.set_fastpath_enabled(False)
        add_borders(self.model)

    def watch_gradients(self, note: Callable[[str, Tensor], object]) -> None:
        """Call ``note`` with the name and the whole gradient of a parameter in each micro-batch.

        A parameter without a gradient is left out. Collective: call on every rank.
        """
        self.note = note

    # -- one step ---------------------------------------------------------------------------------

    def micro_step(self, *, boundary: bool) -> Any:
        # The random numbers belong to the micro-batch, not to the rank.
        moment = now()
        number = self.micro_batches * self.plan.world_size + self.accelerator.process_index
        entropy = moment.seed, moment.step, number, _OF_MICRO_BATCHES
        seed_global_generators(*entropy)  # accelerate's set_seed takes 0.25 ms
        if self.plan.device == "cuda":
            torch.cuda.manual_seed(seed_of(*entropy))
        if self._buffers is None:
            self._buffers = {name: own.clone() for name, own in self.model.named_buffers()}
        self.micro_batches += 1
        return super().micro_step(boundary=boundary)

    def take_gradients(self) -> None:
        """Add each gradient to this rank's sum, as soon as a backward pass has the gradient."""
        for name, parameter in self.parameters():
            take: Any = partial(self._take, name)
            parameter.register_post_accumulate_grad_hook(take)  # type: ignore[no-untyped-call]

    def _take(self, name: str, parameter: Any) -> None:
        gradient, parameter.grad = parameter.grad, None
        if self.note:
            self.note(name, gradient)
        known = self._sums.get(name)
        if known is None:
            self._sums[name] = gradient.double().contiguous()
            return
        if self.counts is not None:
            self.counts.update(additions=known.numel(), rounded=rounded_additions(known, gradient))
        known.add_(gradient)

    def reduced(self) -> Iterator[Tensor]:
        """Yield the sum of each gradient over all ranks, rounded once. Collective.

        Sums travel in buckets: an exchange of each parameter would wait for each.
        """
        for bucket in grouped(self._own_sums(), _BUCKET):
            flat = parameters_to_vector(bucket)
            if self.plan.world_size > 1:
                dist.all_reduce(flat)
            vector_to_parameters(flat.float(), bucket)
            yield from bucket

    def _own_sums(self) -> Iterable[Tensor]:
        """Yield this rank's sums, which are zeros if no micro-batch has used a parameter."""
        for name, parameter in self.parameters():
            own = self._sums.pop(name, None)
            if own is None:
                shape = self._names[name][0]  # an engine may have taken the values away
                own = torch.zeros(shape, dtype=torch.float64, device=parameter.device)
            yield own

    def _norm(self, gradients: list[Tensor], each: Tensor | None) -> Tensor:
        return self.end(gradients, self.shard_group)

    def end(self, gradients: list[Tensor], group: Any) -> Tensor:
        """End the micro-batches of a step, and return the norm of the gradients. Collective.

        Args:
            gradients: this rank's parts, in the order of the shards. Negative zeros become zeros: a
                rank that had nothing to compute has added zeros.
            group: the ranks over which the gradients are divided. None if each has whole tensors.

        Raises:
            DataError: forward passes of the first step have changed a buffer.
        """
        self.micro_batches = 0
        refuse_changed_buffers(self.model, self._buffers or {})
        self._buffers = {}
        for gradient in gradients:
            gradient.add_(0.0)
        self.note_step(gradients)
        return exact_norm(gradients, self._elements, group)
