"""Tasks on mixtures, on blocks of files, and on the shards of a stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from torch import Generator, Tensor, nn

import trainer
from trainer import Data, Task

SIZES = {"code": 90, "web": 20, "maths": 400}


class Values:
    """Random numbers and their classes."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 6, generator=generator)
        self.label = torch.full((size,), seed)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.label[index]


@dataclass(frozen=True, kw_only=True)
class Mixture(Task):
    """Tells sources apart, with noise that belongs to the sample and the pass."""

    def build_data(self) -> Data:
        code, web, maths = (Values(size, seed) for seed, size in enumerate(SIZES.values()))
        train = trainer.mixed({"code": (code, 0.5), "web": (web, 0.25, 2), "maths": (maths, 0.25)})

        def augment(item: tuple[Tensor, Tensor], generator: Generator) -> tuple[Tensor, Tensor]:
            return item[0] + 0.1 * torch.randn(6, generator=generator), item[1]

        return Data(train=train, evaluation=maths, augment=augment)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])


@dataclass(frozen=True, kw_only=True)
class OnBlocks(Mixture):
    """Rows of files that are read in blocks."""

    files: str

    def build_data(self) -> Data:
        cache = str(Path(self.files).parent / "cache")
        rows, evaluated = (trainer.blocks(self.files, lines=10, cache_dir=cache) for _ in range(2))

        def collate(rows: list[dict[str, float]]) -> tuple[Tensor, Tensor]:
            x = torch.tensor([[row["id"] % 7 - 3.0, row["id"] / 300] for row in rows])
            return x, torch.tensor([row["label"] for row in rows])

        return Data(train=rows, evaluation=evaluated, collate=collate)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))


class OnShards(OnBlocks):
    """Rows of a stream, whose number nobody knows."""

    def build_data(self) -> Data:
        data = super().build_data()
        rows = Dataset.from_list([*data.evaluation])
        return replace(data, train=trainer.blocks(rows.to_iterable_dataset(num_shards=7)))
