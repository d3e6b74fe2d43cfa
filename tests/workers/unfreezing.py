"""Run under one layout: a small network whose stem is unfrozen in the middle, and again from checkpoints.

    ranks ... tests/workers/unfreezing.py '{"accel_config": ..., "folder": ..., "cases": {name: ...}}'

A case has settings of the config, and under ``by_callback`` what a callback gives ``run.unfreeze``
after ``UNFROZEN_AT``. Each leaves its run in ``FOLDER/<folder of the case>``, and a line in
``FOLDER/facts.json``. On one process ``reference`` in the cases trains by hand, in plain PyTorch.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import trainer
from trainer import Callback, Data, Run, StepInfo, Task, TrainConfig, Trainer
from trainer.launching import launch
from trainer.optim.schedule import lr_factor

GLOBAL_BATCH, MICRO_BATCH, STEPS, UNFROZEN_AT = 16, 4, 10, 5
RATE, STEM_RATE, DECAY, CLIP = 0.02, 0.05, 0.1, 0.5
KEY = {"layers": "stem.*", "at": UNFROZEN_AT, "lr": STEM_RATE}


class Net(nn.Module):
    """A stem with BatchNorm, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.ReLU()
        )
        self.body = nn.Sequential(
            nn.Conv2d(4, 4, 3, stride=2, bias=False), nn.BatchNorm2d(4), nn.ReLU()
        )
        self.head = nn.Linear(4 * 3 * 3, 5)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(self.stem(images)).flatten(1))


@dataclass(frozen=True, kw_only=True)
class Images(Task):
    """Classifies noise, each class brighter at another place."""

    def build_data(self) -> Data:
        generator = torch.Generator().manual_seed(1)
        labels = torch.randint(0, 5, (64,), generator=generator)
        images = torch.randn(64, 1, 8, 8, generator=generator)
        images[range(64), 0, labels] += 1.0
        items = [
            {"image": image, "label": label} for image, label in zip(images, labels, strict=True)
        ]
        return Data(train=items, evaluation=items[:10])

    def build_model(self) -> nn.Module:
        return Net()

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch["image"]), batch["label"])


class ByCallback(Callback):
    """Unfreezes by code what the config has named without a step."""

    def __init__(self, call: Mapping[str, Any]) -> None:
        self.call = call

    def on_step(self, run: Run, info: StepInfo) -> None:
        if info.step == UNFROZEN_AT:
            run.unfreeze(**self.call)


def configured(world: int, **settings: Any) -> TrainConfig:
    given = {
        "task": "unfreezing:Images",
        "micro_batch_size": MICRO_BATCH,
        "accumulation_steps": GLOBAL_BATCH // MICRO_BATCH // world,
        "max_steps": STEPS,
        "lr": RATE,
        "weight_decay": DECAY,
        "max_grad_norm": CLIP,
        "schedule": "cosine",
        "ema_decay": 0.8,
        "unfreeze": KEY,
        "log_every": 1,
        "save_every": 1,
        "keep_last": 20,
    }
    return TrainConfig(**given | settings)


def reference(folder: Path, accel_config: str) -> dict[str, Any]:
    """Train by hand: the stem frozen by requires_grad, and then added to the optimizer."""
    config = configured(1, output_dir=str(folder / "reference"), unfreeze=None)
    one = Trainer(Images(), config, launch(config, accel_config=accel_config))
    model = deepcopy(one.run.model)
    windows = list(one.run.windows())
    one.run.close()

    def groups(modules: list[nn.Module], rate: float) -> list[dict[str, Any]]:
        parameters = [p for module in modules for p in module.parameters()]
        decayed = [p for p in parameters if p.dim() >= 2]
        others = [p for p in parameters if p.dim() < 2]
        return [
            {"params": decayed, "weight_decay": DECAY, "base": rate, "lr": rate},
            {"params": others, "weight_decay": 0.0, "base": rate, "lr": rate},
        ]

    factor = lr_factor("cosine", warmup_steps=0, total_steps=STEPS)
    model.stem.requires_grad_(False)
    optimizer = torch.optim.AdamW(groups([model.body, model.head], RATE), fused=True)
    found: dict[str, Any] = {"losses": [], "norms": []}
    for step, window in enumerate(windows):
        if step == UNFROZEN_AT:
            model.stem.requires_grad_(True)
            for group in groups([model.stem], STEM_RATE):
                optimizer.add_param_group(group)
        for group in optimizer.param_groups:
            group["lr"] = group["base"] * factor(step)

        losses = []
        for micro in window.micros:
            loss = F.cross_entropy(model(micro.batch["image"]), micro.batch["label"])
            loss = loss * (micro.weight / window.samples)
            loss.backward()
            losses.append(loss.item())
        trained = [p for p in model.parameters() if p.requires_grad]
        norm = nn.utils.clip_grad_norm_(trained, CLIP)
        optimizer.step()
        optimizer.zero_grad()
        found["losses"].append(sum(losses))
        found["norms"].append(norm.item())
    torch.save(model.state_dict(), folder / "reference.pt")
    return found


def main() -> None:
    told = json.loads(sys.argv[1])
    folder, file, world = Path(told["folder"]), told["accel_config"], told["world"]
    folder.mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {}
    for name, case in told["cases"].items():
        if case.get("reference"):
            facts[name] = reference(folder, file)
            continue
        settings = {
            "output_dir": str(folder / case.get("folder", name)),
            **case.get("settings", {}),
        }
        config = configured(world, **settings)
        launched = launch(config, accel_config=file)
        callbacks = [ByCallback(case["by_callback"])] if "by_callback" in case else []
        try:
            one = Trainer(Images(), config, launched, callbacks=callbacks)
            before = one.run.trainable
            one.fit()
            model = one.run.model
            facts[name] = {
                "strategy": type(one.run.strategy).__name__,
                "wrapped": type(model).__name__,
                "world": launched.plan.world_size,
                "trainable": [before, one.run.trainable],
                "plan": one.run.facts.get("unfreezing"),
                "finished": one.run.finished,
            }
            one.close()
        except trainer.TrainerError as error:
            facts[name] = {"error": str(error)}
    if launched.accelerator.is_main_process:
        (folder / "facts.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    trainer.run_and_exit(main)
