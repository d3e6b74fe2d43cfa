"""From which package of Python's standard library is a piece of source code? A small network over
bytes.

The data is real and there already. Put your own into ``build_data`` and ``build_model``.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, TensorDataset

import trainer

PACKAGES = ("asyncio", "email", "http", "importlib", "multiprocessing", "xml")


class Network(nn.Module):
    """Scores for the packages: bytes are embedded, convolved, and the strongest response of each
    filter counts.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, width)
        self.filters = nn.Conv1d(width, 4 * width, kernel_size=7)
        self.scores = nn.Linear(4 * width, len(PACKAGES))

    def forward(self, pieces: Tensor) -> Tensor:
        found = F.relu(self.filters(self.embedding(pieces).transpose(1, 2)))
        scores: Tensor = self.scores(found.amax(dim=-1))
        return scores


@dataclass(frozen=True, kw_only=True)
class Classifier(trainer.Task):
    """Tell the package of a piece. The fields are settings: ``--task_settings.width 64``.

    Args:
        width: of the embedding of a byte.
        length: of a piece, in bytes.
    """

    width: int = 32
    length: int = 128

    def build_data(self) -> trainer.Data:
        learn, measure = [], []
        for label, package in enumerate(PACKAGES):
            files = sorted(Path(sysconfig.get_path("stdlib"), package).rglob("*.py"))
            text = b"".join(file.read_bytes() for file in files)
            letters = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()
            pieces = letters.unfold(0, self.length, self.length)  # without the rest at the end
            labels = torch.full((len(pieces),), label)
            border = len(pieces) * 4 // 5  # other files than those of the training are held out
            learn.append(TensorDataset(pieces[:border], labels[:border]))
            measure.append(TensorDataset(pieces[border:], labels[border:]))
        return trainer.Data(train=ConcatDataset(learn), evaluation=ConcatDataset(measure))

    def build_model(self) -> nn.Module:
        return Network(self.width)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        pieces, labels = batch
        return F.cross_entropy(model(pieces), labels)

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        pieces, labels = batch
        scores = model(pieces)
        return {
            "loss": F.cross_entropy(scores, labels, reduction="none"),
            "accuracy": (scores.argmax(-1) == labels).float(),
        }
