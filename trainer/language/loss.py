"""The mean loss over the tokens of a batch, with or without all logits in memory at once.

The logits of 4,096 tokens over 32,000 words are 0.5 GB in float32, and their gradients as much
again. Where they fit, nothing is faster than to have them; where they do not, a few large chunks of
them cost no more products, and hold one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from .packing import IGNORED
from .separation import trial

FIT = 1 << 29  # bytes of a micro-batch's logits in float32, up to which they are held as a whole
CHUNK = {"cpu": 1 << 26}  # bytes of the logits in float32 of one chunk
CHUNK_ON_GPU = (
    1 << 29
)  # each chunk reads and writes the weight's gradient once, which wants large ones there

Inputs = Mapping[str, Tensor]


class FusedHead(nn.Linear):
    """A model's last layer, which answers with the loss instead of the logits while it has
    ``targets``.

    The loss is computed inside of the layer's own forward, so that what a strategy does around it
    (gathering its weight) happens as ever. A layer becomes one by its class alone: names and
    weights stay.
    """

    targets: Tensor | None = None
    always = False  # also where all logits fit

    def forward(self, hidden: Tensor) -> Tensor:
        if self.targets is None:
            return super().forward(hidden)
        targets = self.targets.flatten()
        fit = rows_that_fit(len(targets), self.out_features) > 0
        if fit and not self.always:
            logits = super().forward(hidden).flatten(0, -2)
            return F.cross_entropy(logits.float(), targets, ignore_index=IGNORED)

        rows = max(1, CHUNK.get(hidden.device.type, CHUNK_ON_GPU) // (4 * self.out_features))
        autocast = torch.is_autocast_enabled(hidden.device.type)  # which does not know what follows
        dtype = torch.get_autocast_dtype(hidden.device.type) if autocast else hidden.dtype
        learns = torch.is_grad_enabled()
        loss: Tensor = ChunkedLoss.apply(  # type: ignore[no-untyped-call]
            hidden.flatten(0, -2), self.weight, self.bias, targets, rows, dtype, learns
        )
        return loss


def rows_that_fit(length: int, vocabulary: int) -> int:
    """Count the rows of so many tokens whose logits are held as a whole: the same on every rank and
    machine.
    """
    return FIT // (4 * length * vocabulary)


class ChunkedLoss(torch.autograd.Function):
    """The mean cross entropy of a linear layer's outputs, of which some rows are in memory at a
    time.

    The gradients are computed on the way, while a chunk of logits is there: three products as
    without chunks, none twice. The weight's adds up in float32, whatever the products are computed
    in.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        rows: int,
        dtype: torch.dtype,
        learns: bool,
    ) -> Tensor:
        """Return the mean over the targets that are not ignored, in float32.

        Args:
            hidden: (tokens, features).
            weight, bias: of (words, features) and (words,).
            targets: (tokens,).
            rows: tokens of a chunk.
            dtype: of the products.
            learns: gradients are wanted.
        """
        hidden_learns, weight_learns, bias_learns = (
            learns and needs for needs in ctx.needs_input_grad[:3]
        )
        matrix = weight.to(dtype)
        learnt = targets != IGNORED
        count = learnt.sum()
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        of_hidden = (
            torch.empty(hidden.shape, dtype=dtype, device=hidden.device) if hidden_learns else None
        )
        of_weight = (
            torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
            if weight_learns
            else None
        )
        of_bias = (
            torch.zeros(weight.shape[:1], dtype=torch.float32, device=weight.device)
            if bias_learns
            else None
        )

        for low in range(0, len(hidden), rows):
            part = slice(low, low + rows)
            inputs = hidden[part].to(dtype)
            right, counts = targets[part].clamp(min=0)[:, None], learnt[part, None]
            logits = F.linear(inputs, matrix, None if bias is None else bias.to(dtype)).float()
            normalizer = logits.logsumexp(-1, keepdim=True)
            total += (normalizer - logits.gather(1, right)).where(counts, 0.0).sum()
            if not learns:
                continue

            gradient = logits.sub_(normalizer).exp_()
            gradient.scatter_add_(1, right, torch.full_like(normalizer, -1.0))
            gradient.masked_fill_(~counts, 0.0)
            if of_bias is not None:
                of_bias += gradient.sum(0)
            gradient = gradient.to(dtype)
            if of_hidden is not None:
                torch.mm(gradient, matrix, out=of_hidden[part])
            if of_weight is not None and dtype == torch.float32:
                of_weight.addmm_(gradient.t(), inputs)
            elif of_weight is not None:
                of_weight += gradient.t() @ inputs

        ctx.save_for_backward(of_hidden, of_weight, of_bias, count)
        return total / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        *gradients, count = ctx.saved_tensors
        factor = outputs[0] / count
        # In place, since the weight's may take gigabytes. A second pass back would be told of it by
        # torch.
        scaled = [None if gradient is None else gradient.mul_(factor) for gradient in gradients]
        return (*scaled, None, None, None, None)


def fuse_head(model: Any, inputs: Inputs, labels: Tensor) -> str:
    """Let the model's last layer compute the loss; return why it cannot, empty if it can.

    Args:
        inputs, labels: of a small batch, on which it is tried out: some models scale or bound their
            logits afterwards.
    """
    head = model.get_output_embeddings()
    if type(head) is not nn.Linear:
        return (
            f"the last layer of {type(model).__name__} is a {type(head).__name__}, no plain Linear"
        )
    head.__class__ = FusedHead
    answers: list[Tensor] = []
    hook = head.register_forward_hook(lambda module, given, answer: answers.append(answer))
    try:
        with torch.no_grad(), trial(model):
            mean = mean_loss(model, inputs, labels)
    finally:
        hook.remove()
    if len(answers) == 1 and torch.equal(mean, answers[0]):
        return ""
    head.__class__ = nn.Linear
    return f"{type(model).__name__} changes the logits behind its last layer"


def mean_loss(model: nn.Module, inputs: Inputs, labels: Tensor) -> Tensor:
    """Return the mean cross entropy over the positions of ``labels`` that are not ignored.

    Args:
        labels: the token that each position is to predict; already shifted.
    """
    head = next((module for module in model.modules() if isinstance(module, FusedHead)), None)
    if head is None:
        logits = model(**inputs, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)
    head.targets = labels
    try:
        answer: Tensor = model(**inputs, use_cache=False).logits
    finally:
        head.targets = None
    return answer
