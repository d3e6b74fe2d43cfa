"""Small models that a strategy, or a plain use of Accelerate, may fail on."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn


class Line(nn.Module):
    """A weight for each of two inputs, from zero; its gradient is the mean input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


class Scaled(Line):
    """Learns a scalar as well."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale


class Tail(nn.Module):
    """Uses the weight of its head, and never calls the head itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 2), nn.Linear(2, 1)

    def get_output_embeddings(self) -> nn.Module:
        return self.head

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.body(x), self.head.weight)


class Embeddings(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.norm = nn.Embedding(4, 2), nn.LayerNorm(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.words(x.long()))


class Nested(nn.Module):
    """Its input embedding lies in a layer that is sharded as one, as BERT's does."""

    _no_split_modules = ("Embeddings",)

    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.head = Embeddings(), nn.Linear(2, 1)

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings.words

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.embeddings(x))


class Heads(nn.Module):
    """One head for each of two ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleList([Line(), Line()])

    def forward(self, x: Tensor) -> Tensor:
        return self.heads[dist.get_rank()](x)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "line": Line,
    "scaled": Scaled,
    "tail": Tail,
    "nested": Nested,
}
