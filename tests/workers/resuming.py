"""Run by torchrun under one layout: checkpoints of others are resumed, saved again and trained on; and its own.

    torchrun ... tests/workers/resuming.py '{"accel_config": ..., "folder": ..., "sources": {name: path}, ...}'

All in one process: a launch costs more than a training of this size.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

import trainer
from trainer import Data, Plan, Task, TrainConfig, Trainer
from trainer.launching import Launched, launch
from trainer.strategies import strategy_class

GLOBAL_BATCH, STEPS, SAVED_AT = (
    24,
    8,
    4,
)  # 24 is cut evenly by 1 to 4 processes; 50 samples: an epoch has 3 steps


class Model(nn.Module):
    """What real ones have: a shared parameter, a frozen one, odd shapes, a scalar, a buffer that
    changes.
    """

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.middle = nn.Linear(5, 3)
        self.back = nn.Linear(3, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(1))
        self.dropout = nn.Dropout(dropout)
        self.register_buffer("forwards", torch.zeros((), dtype=torch.int64))

    def forward(self, ids: Tensor) -> Tensor:
        if self.training:
            self.forwards += 1
        hidden = self.embedding(ids)
        hidden = self.dropout(hidden + self.frozen(hidden))
        return self.head(self.back(self.middle(hidden).tanh()) * self.scale)


class Mixed(SGD):
    """Keeps more state for the parameters of some groups than for the others."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for parameter in group["params"]:
                kept = self.state[parameter]
                kept["step"] = kept.get("step", 0) + 1
                if not group["nesterov"]:
                    continue
                square = kept.setdefault("square", torch.zeros_like(parameter))
                square.addcmul_(parameter.grad, parameter.grad)
                parameter.grad.div_(square.sqrt() + 0.1 * kept["step"])
        return super().step(closure)


@dataclass(frozen=True, kw_only=True)
class Odd(Task):
    """Predicts the next of a few numbers."""

    dropout: float = 0.0
    sgd: bool = False
    seen: dict[str, Any] = dataclasses.field(default_factory=dict, compare=False)

    def build_data(self) -> Data:
        return Data(train=torch.randint(0, 7, (50, 6), generator=torch.Generator().manual_seed(1)))

    def build_model(self) -> nn.Module:
        return Model(self.dropout)

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        if not self.sgd:
            return super().build_optimizer(model, plan)
        learning = [p for p in model.parameters() if p.requires_grad]
        groups = [
            {"params": learning[:2], "momentum": 0.8},
            {"params": learning[2:], "nesterov": True},
        ]
        return Mixed(groups, lr=plan.lr, momentum=0.9)

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        self.seen["steps"] = self.seen.get("steps", 0) + 1
        self.seen["last"] = torch.full((2, 2), float(self.seen["steps"]))
        return F.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())

    def state_dict(self) -> Mapping[str, Any]:
        return dict(self.seen)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.seen.update(state)


def train(launched: Launched, folder: Path, *, task: Task, **settings: Any) -> None:
    """A run on a fresh strategy."""
    plan = launched.plan
    strategy = strategy_class(plan.strategy)(plan, launched.accelerator)
    precision = plan.mixed_precision
    config = configured(
        plan.world_size,
        output_dir=str(folder),
        max_steps=STEPS,
        mixed_precision=precision,
        **settings,
    )
    one = Trainer(task, config, dataclasses.replace(launched, strategy=strategy))
    if config.resume not in ("none", "auto"):
        one.run.save()  # at once: what was read is written again
    for _ in one.steps():
        pass
    one.run.export(folder / "model")
    one.run.close()


def begin(launched: Launched, folder: Path, weights: str) -> None:
    """A run that starts with weights from elsewhere, and writes them again at once."""
    config = configured(
        launched.plan.world_size, output_dir=str(folder), max_steps=STEPS, weights=weights
    )
    strategy = strategy_class(launched.plan.strategy)(launched.plan, launched.accelerator)
    one = Trainer(Odd(), config, dataclasses.replace(launched, strategy=strategy))
    one.run.export(folder / "model")
    one.run.close()


def configured(world: int, **settings: Any) -> TrainConfig:
    return TrainConfig(
        **{
            "task": "resuming:Odd",
            "micro_batch_size": GLOBAL_BATCH // world,
            "global_batch_size": GLOBAL_BATCH,
            "max_grad_norm": 1.0,
            "lr": 0.05,
            "schedule": "cosine",
            "log_every": 1,
            "save_every": SAVED_AT,
            "keep_last": 5,
            "ema_decay": 0.9,
            **settings,
        }
    )


def main() -> None:
    told = json.loads(sys.argv[1])
    folder, world = Path(told["folder"]), told["world"]
    precision = told.get("mixed_precision")
    launched = launch(
        configured(world, max_steps=STEPS, mixed_precision=precision),
        accel_config=told["accel_config"],
    )
    for name, settings in told.get("unbroken", {}).items():
        task = Odd(**settings)
        train(launched, folder / name, task=task)
        again = str(folder / name / "checkpoints" / f"step-{SAVED_AT:08d}")
        train(launched, folder / f"{name}-again", task=Odd(**settings), resume=again)
    for name, path in told.get("sources", {}).items():
        train(launched, folder / name, task=Odd(**told["settings"]), resume=path)
    for name, path in told.get("weights", {}).items():
        begin(launched, folder / name, path)


if __name__ == "__main__":
    trainer.run_and_exit(main)
