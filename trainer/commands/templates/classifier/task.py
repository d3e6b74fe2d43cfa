"""From which package of Python's standard library is a piece of source code? One linear layer over
the frequencies of bytes.

The data is real and there already. Put your own into ``build_data`` and ``build_model``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from sysconfig import get_path
from typing import Any

from torch import Tensor, nn, split, tensor
from torch.nn.functional import cross_entropy

import trainer

PACKAGES = ["asyncio", "email", "http", "importlib", "multiprocessing", "xml"]


@dataclass(frozen=True, kw_only=True)
class Classifier(trainer.Task):
    """Tells the package of a piece. The fields are settings: ``--task_settings.length 128``.

    Args:
        length: of a piece, in bytes.
    """

    length: int = 512

    def build_data(self) -> trainer.Data:
        pieces = []
        for label, package in enumerate(PACKAGES):
            for file in sorted(Path(get_path("stdlib"), package).rglob("*.py")):
                *whole, _ = split(tensor(list(file.read_bytes())), self.length)
                pieces += [(piece, label) for piece in whole]
        return trainer.Data(train=pieces[::2], evaluation=pieces[1::2])

    def build_model(self) -> nn.Module:
        return nn.EmbeddingBag(256, len(PACKAGES))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        pieces, labels = batch
        return cross_entropy(model(pieces), labels)

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        pieces, labels = batch
        scores = model(pieces)
        return {
            "loss": cross_entropy(scores, labels, reduction="none"),
            "accuracy": scores.argmax(1) == labels,
        }
