"""The mean loss over the tokens of a batch, with or without all logits in memory at once.

The logits of 4,096 tokens over 32,000 words are 0.5 GB in float32, and their gradients as much
again. If they fit into memory, nothing is faster. If they do not, a few large chunks cost no
more matrix products, and a single chunk is in memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..strategies.compiled import compiled_as
from .packing import IGNORED
from .quantized import dtype_of_products
from .separation import probing

# Logits of a micro-batch up to this size, in bytes of float32, are computed all at once.
FIT = 1 << 29
# The logits of a chunk in bytes of float32, the least tokens of a chunk, and a number that divides
# its tokens. Each chunk reads and writes the gradient of the weight once, which takes longer than
# the products of fewer tokens. The matrix products of a GPU work on tiles of 128 rows. Beyond 512
# MiB a chunk is the peak of a step. Of 512 tokens that traffic is half of the products' time (12
# bytes a weight beside 3,072 operations, on an H200 by its data sheet).
ON_CPU, ON_GPU = (1 << 26, 256, 1), (1 << 29, 512, 128)


class FusedHead(nn.Linear):
    """A model's last layer, which returns losses instead of the logits if ``targets`` are set.

    ``forward`` computes the loss, so the hooks of a strategy run as always. A Linear becomes a
    FusedHead by a new ``__class__``: names and weights stay.
    """

    targets: Tensor | None = None
    reduction = "mean"  # or "none": the loss of each target
    always = False  # in chunks also if all logits fit

    def forward(self, hidden: Tensor) -> Tensor:
        if self.targets is None:
            return super().forward(hidden)

        targets = self.targets.flatten()
        # The same on every rank and machine.
        if 4 * len(targets) * self.out_features <= FIT and not self.always:
            return loss_of_logits(super().forward(hidden), targets, self.reduction)

        return ChunkedLoss.apply(  # type: ignore[no-any-return,no-untyped-call]
            hidden.flatten(0, -2),
            self.weight,
            targets,
            dtype_of_products(hidden),  # autocast does not act inside of an autograd.Function
            self.reduction == "mean",
            torch.is_grad_enabled(),
        )


def fuse(head: nn.Module, *, always: bool) -> str:
    """Let a model's last layer compute the loss. Return why the layer cannot, or an empty text."""
    if hasattr(head, "lora_A"):
        return "the last layer has an adapter"
    # A layer that is trained whole lies beside the layer as it was.
    for layer in head.modules():
        if type(layer) is nn.Linear:
            layer.__class__ = FusedHead
            layer.always = always  # type: ignore[assignment]
    return ""


def rows_of_chunk(tokens: int, vocabulary: int, device: str) -> int:
    """Return the number of tokens of a chunk, so that all chunks are about as large."""
    size, least, tile = ON_CPU if device == "cpu" else ON_GPU
    limit = max(size // (4 * vocabulary), least)
    chunks = math.ceil(tokens / limit)
    return math.ceil(tokens / chunks / tile) * tile


def in_chunks(
    hidden: Tensor,
    weight: Tensor,
    targets: Tensor,
    dtype: torch.dtype,
    factors: Tensor | None,
    with_weight: bool,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return the cross entropy of each target, with the logits of a chunk in memory.

    Then the gradients of the sum of the losses times ``factors``, in ``hidden`` and in the weight.
    The latter is summed in float32 at least, whatever the dtype of the products.

    Args:
        hidden: (tokens, features).
        weight: (words, features).
        targets: (tokens,). The losses of ``IGNORED`` targets are any numbers.
        dtype: of the products.
        factors: (tokens,). None: no gradients.
        with_weight: whether the gradient in the weight is needed.
    """
    rows = rows_of_chunk(len(targets), len(weight), hidden.device.type)
    wide = torch.promote_types(dtype, torch.float32)
    hidden_gradient = weight_gradient = None
    if factors is not None:
        hidden_gradient = torch.empty_like(hidden, dtype=dtype)
        if with_weight:
            weight_gradient = torch.zeros_like(weight, dtype=wide)

    matrix = weight.to(dtype)
    losses = []
    for begin in range(0, len(hidden), rows):
        chunk = slice(begin, begin + rows)
        inputs = hidden[chunk].to(dtype)
        right = targets[chunk].clamp(min=0)[:, None]
        # On a GPU the cast happens within the operation: no logits in float32 are kept.
        logarithms = torch.log_softmax(F.linear(inputs, matrix), -1, dtype=wide)
        losses.append(-logarithms.gather(1, right).flatten())
        if factors is None or hidden_gradient is None:
            del logarithms
            continue

        # In the memory of the logarithms: softmax, minus 1 at the right word.
        gradient = logarithms.exp_()
        gradient.scatter_add_(1, right, torch.full_like(right, -1.0, dtype=wide))
        gradient = gradient.to(dtype)
        del logarithms  # otherwise two chunks would be in memory during the next softmax
        # The factors come in here: each row has fewer features than words.
        factor = factors[chunk, None]
        torch.mm(gradient, matrix, out=hidden_gradient[chunk]).mul_(factor)
        if weight_gradient is None:
            continue
        inputs = (inputs * factor).to(dtype)
        if dtype == wide:
            weight_gradient.addmm_(gradient.t(), inputs)
        else:
            weight_gradient += gradient.t() @ inputs
    return torch.cat(losses), hidden_gradient, weight_gradient


class ChunkedLoss(torch.autograd.Function):
    """The cross entropy of a linear layer's outputs, with the logits of a chunk in memory.

    For the mean the forward pass computes the gradients as well: three matrix products as without
    chunks. The factors of each target's loss are known in the backward pass alone, which computes
    the logits again.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        dtype: torch.dtype,
        is_mean: bool,
        with_gradients: bool,
    ) -> Tensor:
        """Return the mean over the targets that are not ``IGNORED``, or the loss of each target."""
        counted = targets != IGNORED
        factors = counted if is_mean and with_gradients else None
        ctx.dtype = dtype
        losses, *gradients = in_chunks(
            hidden, weight, targets, dtype, factors, ctx.needs_input_grad[1]
        )
        losses = losses.where(counted, 0.0)
        if not is_mean:
            ctx.save_for_backward(hidden, weight, targets, None)
            return losses
        count = counted.sum()
        ctx.save_for_backward(*gradients, targets, count)
        return losses.sum() / count

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *outputs: Tensor) -> tuple[Tensor | None, ...]:
        first, second, targets, count = ctx.saved_tensors
        if count is None:
            factors = outputs[0].where(targets != IGNORED, 0.0)
            _, first, second = in_chunks(
                first, second, targets, ctx.dtype, factors, ctx.needs_input_grad[1]
            )
        else:
            # In place, since the gradient of the weight may take gigabytes. torch refuses a second
            # backward pass, which would read the changed values.
            for gradient in filter(torch.is_tensor, (first, second)):
                gradient.mul_(outputs[0] / count)
        return first, second, None, None, None, None


def why_not_fusible(model: Any, inputs: Mapping[str, Any]) -> str:
    """Return why the model's last layer cannot compute the loss. Empty if the layer can.

    Some models scale or bound their logits behind the last layer, so a small copy is tried.
    """
    head = model.get_output_embeddings()
    outputs: list[Tensor] = []
    if type(head) is nn.Linear and head.bias is None:
        head.register_forward_hook(lambda module, given, output: outputs.append(output))
        with torch.no_grad(), probing(model):
            logits = model(**inputs, use_cache=False).logits
        if len(outputs) == 1 and torch.equal(logits, outputs[0]):
            return ""
    return f"the logits of {type(model).__name__} are not those of a Linear without a bias"


def mean_loss(
    model: nn.Module, inputs: Mapping[str, Any], labels: Tensor, reduction: str = "mean"
) -> Tensor:
    """Return the mean cross entropy over the positions of ``labels`` that are not ``IGNORED``.

    Position i predicts label i. With the reduction ``none``: the loss of each position, flat.
    """
    heads = [module for module in model.modules() if isinstance(module, FusedHead)]
    for head in heads:
        head.targets, head.reduction = labels, reduction
    try:
        found: Tensor = model(**inputs, use_cache=False).logits
    finally:
        for head in heads:
            head.targets = None
    return found if heads else compiled_as(model, loss_of_logits)(found, labels, reduction)


def token_losses(model: nn.Module, inputs: Mapping[str, Any], labels: Tensor) -> Tensor:
    """Return the cross entropy at each position, in float32: minus the logarithm of the probability
    of the label. 0 if the label is -100.

    Differentiable. The last layer of a model that ``CausalLM.build_model`` returned computes the
    losses in chunks. The model is called as a whole, so that every strategy takes part.

    Args:
        model: as ``training_step`` is given the model.
        inputs: the arguments of the model: input_ids, and for packed rows position_ids.
        labels: the token to predict at each position, or -100. Position i predicts token i + 1.
    """
    return mean_loss(model, inputs, labels, "none").view(labels.shape)


def loss_of_logits(logits: Tensor, labels: Tensor, reduction: str = "mean") -> Tensor:
    """Return the cross entropy over the labels that are not ``IGNORED``, in float32 at least."""
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.cross_entropy(
        logits.flatten(0, -2).to(wide), labels.flatten(), ignore_index=IGNORED, reduction=reduction
    )
