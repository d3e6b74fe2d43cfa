r"""A small ResNet on handwritten digits, with what people bring to one.

    trainer train --config examples/configs/resnet_digits.yaml
    accelerate launch --config_file accel_configs/fsdp.yaml -m trainer train \
        --config examples/configs/resnet_digits.yaml
    trainer evaluate runs/resnet_digits/best --predictions predictions.jsonl

BatchNorm, mixup that fades by epoch, class weights, two learning rates, a stem that is frozen at
first, a moving average, two evaluation sets, pictures. The curve is the same under every strategy
and on any number of processes: ``drop_last`` and one ``micro_batch_size`` keep BatchNorm's batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainer

CLASSES = 10


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels_in: int, channels_out: int, stride: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels_out)
        self.second = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels_out)

        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = F.silu(self.first_norm(self.first(x)))
        return F.silu(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet(nn.Module):
    """A stem, two blocks and a head. SiLU has no kink, where rounding would part the curves."""

    def __init__(self, width: int) -> None:
        super().__init__()
        stem = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(width), nn.SiLU())
        self.blocks = nn.Sequential(Block(width, width), Block(width, 2 * width, stride=2))
        self.head = nn.Linear(2 * width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.blocks(self.stem(images)).mean((2, 3)))


@dataclass(frozen=True, kw_only=True)
class ResNetDigits(trainer.Task):
    """Tell ten digits apart, clean ones and noisy ones."""

    width: int = 8
    noise: float = 0.3  # of the noisy evaluation set
    mixup: float = 0.5  # largest share of the other image, in the first epoch
    mixup_epochs: int = 3  # after which nothing is mixed
    weight_of_8: float = 3.0  # of the digit that is mistaken most often; the others have 1

    def build_data(self) -> trainer.Data:
        from sklearn.datasets import load_digits

        digits = load_digits()
        generator = torch.Generator().manual_seed(0)
        order = torch.randperm(len(digits.target), generator=generator)
        images = torch.tensor(digits.images).float()[order, None] / 16  # (1797, 1, 8, 8)
        labels = torch.tensor(digits.target)[order]
        noisy = images + self.noise * torch.randn(images.shape, generator=generator)

        targets = F.one_hot(labels, CLASSES).float()
        train = [{"image": images[i], "target": targets[i]} for i in range(360, len(images))]
        clean_set = [{"image": images[i], "label": labels[i]} for i in range(360)]
        noisy_set = [{"image": noisy[i], "label": labels[i]} for i in range(360)]

        def augment(item: dict[str, Tensor], generator: torch.Generator) -> dict[str, Tensor]:
            """Mix an item with another one: the less, the later the epoch."""
            strength = self.mixup * max(0.0, 1 - trainer.now().epoch / self.mixup_epochs)
            share = strength * torch.rand((), generator=generator)
            other = train[int(torch.randint(len(train), (), generator=generator))]
            return {key: (1 - share) * item[key] + share * other[key] for key in item}

        on_noise = trainer.EvaluationSet(
            noisy_set, every="2 epochs", evaluation_step=self.evaluate_noisy
        )
        return trainer.Data(
            train=train, evaluation={"clean": clean_set, "noisy": on_noise}, augment=augment
        )

    def build_model(self) -> nn.Module:
        return ResNet(self.width)

    def build_optimizer(self, model: nn.Module, plan: trainer.Plan) -> torch.optim.Optimizer:
        body = [*model.stem.parameters(), *model.blocks.parameters()]
        head = {"name": "head", "params": model.head.parameters(), "lr": 3 * plan.lr}
        return torch.optim.AdamW([{"name": "body", "params": body}, head], lr=plan.lr, eps=1e-6)

    def class_weights(self) -> Tensor:
        weights = torch.ones(CLASSES)
        weights[8] = self.weight_of_8
        return weights

    def weight(self, batch: dict[str, Tensor]) -> Tensor:
        """Return what the loss is divided by: the sum of class weights, not of examples."""
        return (batch["target"] @ self.class_weights()).sum()

    def training_step(self, model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        target = batch["target"]
        weighted = target * self.class_weights().to(target.device)
        return -(weighted * model(batch["image"]).log_softmax(1)).sum() / weighted.sum()

    def evaluation_step(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Any]:
        logits, labels = model(batch["image"]), batch["label"]
        predicted = logits.argmax(1)
        pairs = torch.bincount(labels * CLASSES + predicted, minlength=CLASSES**2)
        return {
            "loss": F.cross_entropy(logits, labels, reduction="none"),
            "accuracy": (predicted == labels).float(),
            "confusion": (pairs.reshape(CLASSES, CLASSES), None),  # counts
        }

    def evaluate_noisy(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Any]:
        return {"error": (model(batch["image"]).argmax(1) != batch["label"]).float()}

    def prediction_step(self, model: nn.Module, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        probability, predicted = model(batch["image"]).softmax(1).max(1)
        return {"label": batch["label"], "predicted": predicted, "probability": probability}
