"""A small convolutional network on real handwritten digits: scikit-learn's 1,797 images of 8x8
pixels.

Needs the extra ``examples`` (scikit-learn ships the images, nothing is downloaded).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from trainer import Data, Task

GROUPS = 8


class Digits(Dataset[dict[str, Tensor]]):
    """Images (1, 8, 8), scaled to [0, 1], with their labels 0 to 9; ``rows`` picks some of
    scikit-learn's.
    """

    def __init__(self, pixels: Tensor, labels: Tensor, rows: Tensor) -> None:
        self.images = pixels[rows, None] / 16  # the pixels count to 16
        self.labels = labels[rows]

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"image": self.images[index], "label": self.labels[index]}


@dataclass(frozen=True, kw_only=True)
class DigitsCNN(Task):
    """Tell which digit an image shows.

    Args:
        width: channels of the first two convolutions (the third has twice as many); a multiple of
            8.
        split_seed: picks which fifth of the images is held out.
    """

    width: int = 32
    split_seed: int = 0

    def __post_init__(self) -> None:
        if self.width < 1 or self.width % GROUPS:
            rule = f"must be a positive multiple of {GROUPS}, the groups of its normalisation"
            raise ValueError(f"width: {self.width}: {rule}")

    def build_data(self) -> Data:
        from sklearn.datasets import load_digits  # half a second, and only needed here

        digits = load_digits()
        pixels = torch.from_numpy(digits.images).float()
        labels = torch.from_numpy(digits.target).long()
        order = torch.randperm(
            len(labels), generator=torch.Generator().manual_seed(self.split_seed)
        )
        held_out = len(order) // 5
        return Data(
            train=Digits(pixels, labels, order[held_out:]),
            evaluation=Digits(pixels, labels, order[:held_out]),
        )

    def build_model(self) -> nn.Module:
        # Normalising over channels, never over the batch: the loss must not depend on how the batch
        # is dealt out.
        width = self.width
        return nn.Sequential(
            *_convolution(1, width),
            *_convolution(width, width),
            nn.MaxPool2d(2),
            *_convolution(width, 2 * width),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(2 * width * 2 * 2, 10),
        )

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch["image"]), batch["label"])

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        logits, labels = model(batch["image"]), batch["label"]
        right = logits.argmax(-1) == labels
        confusion = torch.zeros(10, 10, dtype=torch.long, device=labels.device)
        confusion.index_put_((labels, logits.argmax(-1)), torch.ones_like(labels), accumulate=True)
        return {
            "loss": F.cross_entropy(logits, labels, reduction="none"),
            "accuracy": right.float(),
            "top3": (logits.topk(3).indices == labels[:, None]).any(-1).float(),
            "recall": (
                confusion.diagonal(),
                confusion.sum(1),
            ),  # per class: eval/recall/0 ... eval/recall/9
            "confusion": (confusion, None),  # counts: eval/confusion/<label>/<prediction>
        }

    def prediction_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        probabilities = model(batch["image"]).softmax(-1)
        return {
            "label": batch["label"],
            "predicted": probabilities.argmax(-1),
            "probability": probabilities.amax(-1),
        }


def _convolution(channels_in: int, channels_out: int) -> tuple[nn.Module, ...]:
    return (
        nn.Conv2d(channels_in, channels_out, 3, padding=1),
        nn.GroupNorm(GROUPS, channels_out),
        nn.ReLU(),
    )
