"""The work that all contenders do: the same model, samples, optimizer and schedule. Needs nothing
but torch.

The coordinator writes it to a folder: settings, first weights, and the order of the samples.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

LR, FINAL, DECAY, CLIP, READ_EVERY, SAMPLES = 1e-3, 0.1, 0.01, 1.0, 50, 4096
VOCABULARY, WIDTH, LAYERS, HEADS, LENGTH = 512, 256, 10, 4, 32  # 8.0 million parameters


@dataclass(frozen=True, kw_only=True)
class Work:
    """One table's work.

    Args:
        model: ``mlp``, ``gpt`` or ``llama``.
        strategy: ``single``, ``ddp``, ``fsdp``, ``zero1``, ``zero2`` or ``zero3``.
        batch: samples of one process and step.
        warm_up: steps before the first turn.
        block: steps of one turn.
        rounds: turns of each contender.
        folder: where weights, order and settings lie.
    """

    model: str
    strategy: str
    world: int
    batch: int
    warm_up: int
    block: int
    rounds: int
    folder: str

    @property
    def steps(self) -> int:
        return (
            self.warm_up + self.rounds * self.block + 1
        )  # the last turn is not timed: it ends the training

    @property
    def rank(self) -> int:
        return int(os.environ.get("RANK", "0"))

    @cached_property
    def start(self) -> dict[str, Any]:
        """Return ``weights`` by name, and ``order``: the samples of all steps and ranks, one after
        another.
        """
        return dict(torch.load(Path(self.folder) / "start.pt"))

    def write(self, weights: dict[str, Tensor], order: Tensor) -> None:
        (Path(self.folder) / "work.json").write_text(json.dumps(asdict(self)))
        torch.save({"weights": weights, "order": order}, Path(self.folder) / "start.pt")

    @classmethod
    def read(cls, folder: str) -> Work:
        return cls(**json.loads((Path(folder) / "work.json").read_text()))

    def factor(self, step: int) -> float:
        """Return what the learning rate is multiplied by: a linear warm-up, then half a cosine down
        to a tenth.
        """
        if step < self.warm_up:
            return (step + 1) / (self.warm_up + 1)
        falling = 0.5 * (
            1 + math.cos(math.pi * (step - self.warm_up) / (self.steps - self.warm_up))
        )
        return FINAL + (1 - FINAL) * falling

    def build_model(self) -> nn.Module:
        model = build_model(self.model)
        model.load_state_dict(self.start["weights"])
        return model

    def optimizer(self, model: nn.Module) -> AdamW:
        return AdamW(groups(model.parameters()), lr=LR, fused=True)

    def schedule(self, optimizer: torch.optim.Optimizer) -> LambdaLR:
        return LambdaLR(optimizer, self.factor)

    def samples(self, *, whole: bool = False) -> list[int]:
        """Return this rank's samples in order, or those of all ranks, for who divides them on its
        own.
        """
        order = self.start["order"].view(self.steps, self.world, self.batch)
        return list((order if whole else order[:, self.rank]).flatten().tolist())

    def loader(self, *, whole: bool = False) -> DataLoader[Any]:
        """Make torch's loader of ``samples``."""
        # A list is a sampler that yields it.
        return DataLoader(
            build_data(self.model), batch_size=self.batch, sampler=self.samples(whole=whole)
        )


def groups(parameters: Iterable[nn.Parameter]) -> list[dict[str, Any]]:
    """Divide what learns: matrices decay, biases and norms do not."""
    every = list(parameters)
    return [
        {"params": [p for p in every if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for p in every if p.dim() < 2], "weight_decay": 0.0},
    ]


def loss_of(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch["x"]).flatten(0, -2), batch["y"].flatten())


class Block(nn.Module):
    """Attention and a feed-forward layer, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        # A bias of keys has no gradient but rounding, which Adam would make as large as any other.
        self.attention, self.projection = (
            nn.Linear(WIDTH, 3 * WIDTH, bias=False),
            nn.Linear(WIDTH, WIDTH),
        )
        self.feed_forward = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        parts = (
            self.attention(self.norms[0](x)).view(*x.shape[:2], 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        )
        x = x + self.projection(
            F.scaled_dot_product_attention(*parts, is_causal=True).transpose(1, 2).flatten(2)
        )
        return x + self.feed_forward(self.norms[1](x))


class GPT(nn.Module):
    """A small GPT: tokens in, scores of the next ones out."""

    _no_split_modules = ("Block",)  # the units in which FSDP2 divides it

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions(places))))


def build_model(name: str) -> nn.Module:
    """Build a model with first values of the moment; the MLP has so little arithmetic that a step
    is overhead.
    """
    # At the kink of a ReLU what is rounded differently learns differently.
    return (
        GPT() if name == "gpt" else nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 10))
    )


def build_data(name: str) -> list[dict[str, Tensor]]:
    """Make random samples that can be learnt, the same in every process."""
    draw = torch.Generator().manual_seed(1)
    if name == "gpt":
        tokens = (
            torch.randint(0, VOCABULARY, (SAMPLES, LENGTH + 1), generator=draw) // 4
        )  # a few are frequent
        return [{"x": row[:-1], "y": row[1:]} for row in tokens]
    points = torch.randn(SAMPLES, 32, generator=draw)
    return [{"x": x, "y": y} for x, y in zip(points, points[:, :10].argmax(1), strict=True)]
