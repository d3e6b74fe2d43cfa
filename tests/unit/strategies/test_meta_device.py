"""Models on the meta device: what gives them values, and what says so where nothing does."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn
from whole_model import build_whole

from trainer import LaunchError, Task


class Layers(nn.Module):
    """Layers of torch: with lists of their weights, own names for what draws them, tied ones."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(8, 4)
        self.layers = nn.ModuleList(
            [nn.TransformerEncoderLayer(4, 2, 8, batch_first=True) for _ in range(2)]
        )
        self.memory = nn.LSTM(4, 4, batch_first=True)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        hidden = self.embedding(ids)
        for layer in self.layers:
            hidden = layer(hidden)
        answer: Tensor = self.head(
            self.norm(self.memory(hidden)[0].transpose(1, 2)).transpose(1, 2)
        )
        return answer


class Masked(nn.Linear):
    """A layer with a mask that nothing draws again."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__(2, 2)
        self.register_buffer("mask", mask, persistent=False)


@dataclass(frozen=True, kw_only=True)
class Built(Task):
    kind: str = "layers"

    def build_model(self) -> nn.Module:
        with torch.device("meta"):
            if self.kind == "layers":
                return Layers()
            mask = torch.ones(2, 2).tril()
            return nn.Sequential(
                Masked(mask.bool() if self.kind == "bool" else mask.to(getattr(torch, self.kind)))
            )


def test_layers_of_torch_get_values_by_name() -> None:
    one = build_whole(Built())
    tensors = dict(one.named_parameters())
    assert one.head.weight is one.embedding.weight and "head.weight" not in tensors  # type: ignore[union-attr]
    first, second = (dict(layer.named_parameters()) for layer in one.layers)  # type: ignore[union-attr,arg-type]
    assert not torch.equal(first["linear1.weight"], second["linear1.weight"])
    loss = one(torch.arange(6).reshape(2, 3)).square().mean()
    loss.backward()  # type: ignore[no-untyped-call]
    assert loss.isfinite() and all(tensor.grad is not None for tensor in tensors.values())


@pytest.mark.parametrize("kind", ["bool", "long", "float32"])
def test_a_buffer_that_nothing_fills_is_named(kind: str) -> None:
    with pytest.raises(
        LaunchError, match=r"^0\.mask was built on the meta device, and nothing sets the values: "
    ):
        build_whole(Built(kind=kind))
