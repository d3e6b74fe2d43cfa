"""A task that depends on step and epoch, and a callback that counts steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

import trainer
from trainer import Callback, Data, Run, StepInfo, Task

SAMPLES, STEPS = 26, 10
FEATURES, CLASSES = 6, 3


class Samples:
    """Random features and classes."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(SAMPLES, FEATURES, generator=generator)
        self.label = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": self.x[index], "label": self.label[index]}


class Moments(Task):
    """Mixup of one strength a step, which falls by epoch, and features that are dropped by step."""

    def build_data(self) -> Data:
        data = Samples()

        def augment(item: dict[str, Any], generator: Generator) -> dict[str, Any]:
            """Add noise that grows by epoch, and a partner for mixup, out of all samples."""
            now = trainer.now()
            assert now.generator is generator
            partner = int(torch.randint(0, SAMPLES, (), generator=generator))
            noise = 0.1 * (1 + int(now.epoch)) * torch.randn(FEATURES, generator=generator)
            at = torch.tensor([now.step, now.epoch, now.samples], dtype=torch.float64)
            mixed = {"x2": data.x[partner], "label2": data.label[partner]}
            return {**item, **mixed, "x": item["x"] + noise, "at": at}

        return Data(train=data, evaluation=Samples(), augment=augment)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(FEATURES, 16), nn.Tanh(), nn.Linear(16, CLASSES))

    def training_step(self, model: nn.Module, batch: Any) -> tuple[Tensor, Mapping[str, Any]]:
        now = trainer.now()
        here = torch.tensor([now.step, now.epoch, now.samples], dtype=torch.float64)
        assert now.evaluation_set is None and now.total_steps == STEPS
        assert torch.equal(batch["at"], here.expand_as(batch["at"])), "fetched for this step"

        strength = 1 - now.epoch / 3
        part = strength * float(torch.rand((), generator=now.generator))
        x = (1 - part) * batch["x"] + part * batch["x2"]
        logits = model(x * kept())
        first = F.cross_entropy(logits, batch["label"])
        second = F.cross_entropy(logits, batch["label2"])
        loss = (1 - part) * first + part * second
        return loss, {"part": part, "at_step": float(now.step), "at_epoch": now.epoch}

    def evaluation_step(self, model: nn.Module, batch: Any) -> Mapping[str, Any]:
        now = trainer.now()
        assert now.evaluation_set == ""
        loss = F.cross_entropy(model(batch["x"] * kept()), batch["label"], reduction="none")
        return {"loss": loss, "at_step": torch.full_like(loss, now.step)}


def kept() -> Tensor:
    """Return the features that this step keeps: ever fewer, the same for the whole global batch."""
    now = trainer.now()
    generator = now.generator
    torch.rand((), generator=generator)  # mixup's
    drawn = torch.rand(FEATURES, generator=generator)
    return (drawn >= 0.5 * now.step / now.total_steps).float()


@dataclass
class Watch(Callback):
    """Counts steps, and looks whether each is the one that ``now`` tells."""

    first: int
    seen: int = field(default=0, init=False)

    def on_step(self, run: Run, info: StepInfo) -> None:
        assert trainer.now().step == info.step == self.first + self.seen
        self.seen += 1

    def state_dict(self) -> Mapping[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen = state["seen"]
