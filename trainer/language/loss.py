"""The mean loss over the tokens of a batch, with or without all logits in memory at once.

The logits of 4,096 tokens over 32,000 words are 0.5 GB in float32, and their gradients as much again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .packing import IGNORED
from .separation import trial

Inputs = Mapping[str, Tensor]


class FusedHead(nn.Linear):
    """A model's last layer, which answers with the loss instead of the logits while it has ``targets``.

    The loss is computed inside of the layer's own forward, so that what a strategy does around it (gathering its
    weight) happens as ever. A layer becomes one by its class alone: names and weights stay.
    """

    targets: Tensor | None = None

    def forward(self, hidden: Tensor) -> Tensor:
        if self.targets is None:
            return super().forward(hidden)
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if torch.is_autocast_enabled(hidden.device.type):  # which does not know this function
            dtype = torch.get_autocast_dtype(hidden.device.type)
            hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        # A loss for each token, summed in float32: the function's own mean is rounded to the dtype of the weights.
        losses = F.linear_cross_entropy(
            hidden.flatten(0, -2),
            weight,
            self.targets.flatten(),
            linear_bias=bias,
            reduction="none",
            ignore_index=IGNORED,
            options=nn.LinearCrossEntropyOptions(),
        )
        return losses.float().sum() / (self.targets != IGNORED).sum()


def fuse_head(model: Any, inputs: Inputs, labels: Tensor) -> str:
    """Let the model's last layer compute the loss; return why it cannot, empty if it can.

    Args:
        inputs, labels: of a small batch, on which it is tried out: some models scale or bound their logits afterwards.
    """
    head = model.get_output_embeddings()
    if not hasattr(F, "linear_cross_entropy"):
        return f"torch {torch.__version__} has no linear_cross_entropy; 2.13 has"
    if type(head) is not nn.Linear:
        return f"the last layer of {type(model).__name__} is a {type(head).__name__}, no plain Linear"
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
