"""Run under one layout: small trainings with Muon, one after the other.

    ranks ... tests/workers/muon_cases.py '{"accel_config": ..., "folder": ..., "world": 2, "cases": {...}}'

Each leaves ``<folder>/<name>.json`` with its losses and norms, or the error that ended it, and its model.
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
from of_all_ranks import leave, of_all
from torch import Tensor, nn
from torch.optim import Optimizer

import trainer
from trainer import Data, Plan, Task, TrainConfig, Trainer
from trainer.launching import Launched, launch
from trainer.strategies import strategy_class

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

from smooth_cnn import SmoothCNN

GLOBAL_BATCH = 24  # is cut evenly by 1 to 4 processes, and in two micro-batches each
VOCABULARY = 48


@dataclass(frozen=True, kw_only=True)
class SmallLlama(Task):
    """A Llama with grouped keys on random texts.

    Args:
        lora: only adapters and the output layer are trained.
    """

    lora: bool = False

    def build_data(self) -> Data:
        generator = torch.Generator().manual_seed(3)
        texts = torch.randint(0, VOCABULARY, (120, 12), generator=generator)
        return Data(train=list(texts.sort(dim=1).values))

    def build_model(self) -> nn.Module:
        from transformers import AutoModelForCausalLM, LlamaConfig

        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=72,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
        )
        model = AutoModelForCausalLM.from_config(config)
        if not self.lora:
            return model
        from peft import LoraConfig, get_peft_model

        modules = {"target_modules": ["q_proj"], "modules_to_save": ["up_proj"]}
        return get_peft_model(model, LoraConfig(r=4, task_type="CAUSAL_LM", **modules))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return model(input_ids=batch, labels=batch).loss


class Mixture(nn.Module):
    """Experts in a parameter of three dimensions, behind a layer that is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 10).requires_grad_(False)
        self.router = nn.Parameter(torch.randn(10, 3) / 3)
        self.experts = nn.Parameter(torch.randn(3, 10, 7) / 3)
        self.unused = nn.Linear(7, 7)
        self.head = nn.Linear(7, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.frozen(x)
        parts = (hidden @ self.router).softmax(-1)
        return self.head(torch.einsum("bi,eij,be->bj", hidden, self.experts, parts).tanh())


@dataclass(frozen=True, kw_only=True)
class Experts(Task):
    """Classes of random features.

    Args:
        broken: the step whose gradients are not finite.
    """

    broken: int | None = None

    def build_data(self) -> Data:
        features = torch.randn(96, 6, generator=torch.Generator().manual_seed(1))
        return Data(train=[{"x": x, "label": x[:4].argmax()} for x in features])

    def build_model(self) -> nn.Module:
        return Mixture()

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        loss = F.cross_entropy(model(batch["x"]), batch["label"])
        return loss * (float("nan") if trainer.now().step == self.broken else 1.0)


@dataclass(frozen=True, kw_only=True)
class OwnMuon(SmallLlama):
    """As people write it for a single process."""

    def build_optimizer(self, model: nn.Module, plan: Plan) -> Optimizer:
        return torch.optim.Muon([p for p in model.parameters() if p.dim() == 2], lr=plan.lr)


TASKS = {"llama": SmallLlama, "digits": SmoothCNN, "experts": Experts, "own": OwnMuon}


def configured(world: int, **settings: Any) -> TrainConfig:
    share = GLOBAL_BATCH // world // settings.pop("micro_batches", 1)
    return TrainConfig(
        **{
            "task": "muon_cases:SmallLlama",
            "micro_batch_size": share,
            "global_batch_size": GLOBAL_BATCH,
            "max_steps": 20,
            "optimizer": "muon",
            "lr": 0.01,
            "weight_decay": 0.1,
            "max_grad_norm": 1.0,
            "schedule": "cosine",
            "log_every": 1,
            "export_dtype": "float32",
            **settings,
        }
    )


def train(launched: Launched, folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Train a case on a fresh strategy."""
    given = dict(settings)
    task = TASKS[given.pop("kind")](**given.pop("of_task", {}))
    plan = launched.plan
    try:
        config = configured(plan.world_size, output_dir=str(folder), **given)
        one = launch(config, accel_config=given_file())
        strategy = strategy_class(plan.strategy)(one.plan, one.accelerator)
        run = Trainer(task, config, dataclasses.replace(one, strategy=strategy))
        rows = [
            [info.metrics["loss"], info.metrics["grad_norm"]]
            for info in run.steps()
            if info.metrics
        ]
        run.run.export(folder / "model")
        optimizer: Any = run.run.strategy.optimizer
        found = {
            "rows": rows,
            "notices": run.run.facts["notices"],
            "strategy": plan.strategy,
            "class": type(run.run.model).__name__,
            "world": run.run.accelerator.num_processes,
            "state": of_all(sorted({key for own in optimizer.state.values() for key in own})),
        }
        run.run.close()
        return found
    except trainer.TrainerError as error:
        return {"error": str(error)}


def given_file() -> str:
    return str(json.loads(sys.argv[1])["accel_config"])


def main() -> None:
    told = json.loads(sys.argv[1])
    folder = Path(told["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    launched = launch(configured(told["world"]), accel_config=told["accel_config"])
    for name, settings in told["cases"].items():
        leave(folder / f"{name}.json", train(launched, folder / name, settings))


if __name__ == "__main__":
    trainer.run_and_exit(main)
