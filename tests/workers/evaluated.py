"""A small task with what an evaluation must not lose: running statistics, a moving average, a stream."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import IterableDataset

from trainer import Data, Task, now


class Stream(IterableDataset[Any]):
    """The items of a list, without a length."""

    def __init__(self, items: list[Any]) -> None:
        self.items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self.items)


@dataclass(frozen=True, kw_only=True)
class Sign(Task):
    """Tell the sign of a sum of four numbers.

    Args:
        held_out: examples to evaluate on; 0 for no evaluation set.
        stream: whether they come as a stream.
        named: whether there are two evaluation sets, with names.
        width: of the hidden layer.
    """

    held_out: int = 23
    stream: bool = False
    named: bool = False
    width: int = 6

    def build_data(self) -> Data:
        generator = torch.Generator().manual_seed(3)
        values = torch.randn(48 + self.held_out, 4, generator=generator)
        items: list[Any] = [(row, int(row.sum() > 0)) for row in values]
        evaluation: Any = items[48:] or None
        if self.stream:
            evaluation = Stream(items[48:])
        if self.named:
            evaluation = {"clean": items[48:], "first": Stream(items[48:55])}
        return Data(train=items[:48], evaluation=evaluation)

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Linear(4, self.width),
            nn.BatchNorm1d(self.width),
            nn.ReLU(),
            nn.Linear(self.width, 2),
        )

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        logits = model(batch[0])
        return {
            "loss": F.cross_entropy(logits, batch[1], reduction="none"),
            "accuracy": (logits.argmax(-1) == batch[1]).float(),
        }

    def prediction_step(self, model: nn.Module, batch: Any) -> Any:
        logits = model(batch[0])
        return {
            "label": batch[1],
            "logits": logits,
            "name": ["plus" if right else "minus" for right in logits.argmax(-1).tolist()],
            "at": [f"{now().evaluation_set} {now().step}"] * len(logits),
        }
