"""Run by torchrun on two processes: what bare Accelerate makes of a case, and what the trainer makes of it.

torchrun --nproc_per_node 2 tests/workers/traps.py ACCEL_CONFIG FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from accelerate import Accelerator, DeepSpeedPlugin, PartialState
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch import Tensor, nn
from torch.utils.data import DataLoader

import trainer
from trainer import ConfigError, Data, Task, TrainConfig, Trainer, launch

SAMPLES = 9


class Line(nn.Module):
    """A weight for each of two inputs, from zero; its gradient is the mean input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1, 2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


@dataclass(frozen=True, kw_only=True)
class Slope(Task):
    """Gradient ``value`` from every sample; the evaluation is the mean of 0, 1, 2, ... SAMPLES - 1."""

    value: float = 1.0

    def build_data(self) -> Data:
        rows = [{"x": torch.tensor([self.value, 0.0]), "n": torch.tensor(float(n))} for n in range(SAMPLES)]
        return Data(train=rows, evaluation=rows)

    def build_model(self) -> nn.Module:
        return Line()

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return model(batch["x"]).mean()

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        model(batch["x"])
        return {"number": batch["n"]}


def trained(accel_config: str, folder: Path, **settings: Any) -> tuple[Trainer, list[float], list[float]]:
    """Ours: the trainer after its steps, the norm of each step's gradient, and how far each step went at lr 1."""
    given: dict[str, Any] = {
        "task": "traps:Slope", "output_dir": str(folder / "run"), "overwrite": True, "optimizer": "sgd",
        "momentum": 0.0, "weight_decay": 0.0, "lr": 1.0, "log_every": 1, "epochs": 1,
    }  # fmt: skip
    value = settings.pop("value", 1.0)
    config = TrainConfig(**given | settings)
    ours = Trainer(Slope(value=value), config, launch(config, accel_config=accel_config))
    norms, ways, before = [], [], 0.0
    for info in ours.steps():
        assert info.metrics is not None
        norms.append(info.metrics["grad_norm"])
        [(name, _, _, handle)] = ours.strategy.named_tensors()
        now = float(ours.strategy.gather(name, handle).norm())
        ways.append(now - before)
        before = now
    ours.control.close()
    return ours, norms, ways


def everyone(mine: Any) -> list[Any]:
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return told


def replicas(accel_config: str, folder: Path) -> dict[str, Any]:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    assert accelerator.num_processes == 2
    line = Line()
    optimizer = torch.optim.SGD(line.parameters(), lr=1.0)
    numbers = torch.arange(float(SAMPLES))
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    loader = DataLoader(numbers, batch_size=1)
    model, optimizer, schedule, loader = accelerator.prepare(line, optimizer, constant, loader)
    gradients, seen, steps = [], [], 0
    for batch in loader:  # five micro-batches on each process: a window of four, and one of one
        seen += batch.tolist()
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.tensor([[1.0, 0.0]])).mean())
            if accelerator.sync_gradients:
                gradients.append(float(line.weight.grad.norm()))
                steps += 1
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    loader = accelerator.prepare(DataLoader(numbers, batch_size=4))
    values = torch.stack([accelerator.gather_for_metrics(batch.mean()).mean() for batch in loader])
    mine = numbers[:6] if accelerator.is_main_process else numbers[6:]
    bare = {
        "schedule": [schedule.scheduler.last_epoch, steps],
        "short window": gradients,
        "samples": sorted(n for part in everyone(seen) for n in part),
        "gathered means": float(values.mean()),
        "reduced mean": float(accelerator.reduce(mine.mean(), "mean")),
        "own orders": sorted(n for part in everyone(shuffled()) for n in part),
    }
    ours, norms, _ = trained(accel_config, folder, micro_batch_size=1, accumulation_steps=4)
    epoch = ours.train_data.windows(0, ours.steps_per_epoch)
    taken = [n for window in epoch for micro in window.micros if micro.weight for n in micro.batch["n"].tolist()]
    result = {
        "schedule": [ours.schedule.last_epoch, ours.step],
        "short window": norms,
        "samples": sorted(n for part in everyone(taken) for n in part),
        "mean": ours.last_evaluation["eval/number"],
    }
    ours.close()
    return {"bare": bare, "ours": result}


def shuffled() -> list[float]:
    """This process's share of a shuffled epoch, with a seed of its own for dropout as the documentation has it."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    set_seed(0, device_specific=True)
    loader = DataLoader(torch.arange(8.0), batch_size=1, shuffle=True)
    return [float(batch) for batch in accelerator.prepare(loader)]


def engine(accel_config: str, folder: Path) -> dict[str, Any]:
    os.environ.update(ACCELERATE_USE_DEEPSPEED="true", DS_ACCELERATOR="cpu")
    # Bare DeepSpeed compiles an operator for inference first, which takes a minute and more and has no part in this.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    PartialState(backend="gloo")
    bare: dict[str, Any] = {"way": {}}
    for limit in (None, 0.25):
        plugin = DeepSpeedPlugin(zero_stage=2, gradient_accumulation_steps=2)
        accelerator = Accelerator(deepspeed_plugin=plugin, gradient_accumulation_steps=1)
        plugin.deepspeed_config["train_micro_batch_size_per_gpu"] = 1
        plugin.deepspeed_config["zero_allow_untested_optimizer"] = True
        plugin.deepspeed_config["zero_optimization"]["reduce_bucket_size"] = 1000  # by default a buffer of 2 GB
        line = Line()
        model, optimizer = accelerator.prepare(line, torch.optim.SGD(line.parameters(), lr=1.0))
        bare["accumulation"] = accelerator.gradient_accumulation_steps
        for _ in range(2):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.tensor([[10.0, 0.0]])).mean())
                if limit is not None:
                    accelerator.clip_grad_norm_(model.parameters(), limit)
                optimizer.step()
                optimizer.zero_grad()
        bare["way"][str(limit)] = float(line.weight.detach().norm())
        model.destroy()
        AcceleratorState._reset_state()
        GradientState._reset_state()
    ways = {}
    for limit in (None, 0.25):
        ours, norms, moved = trained(
            accel_config, folder, micro_batch_size=1, accumulation_steps=2, max_steps=1, max_grad_norm=limit, value=10.0
        )
        assert norms[0] == 10.0
        ways[str(limit)] = moved[0]
        ours.close()
    two = folder / f"two-{dist.get_rank()}.yaml"
    two.write_text(
        Path(accel_config).read_text().replace("zero_stage: 2", "zero_stage: 2\n  gradient_accumulation_steps: 2")
    )
    try:
        trained(str(two), folder, accumulation_steps=1)
        refused = ""
    except ConfigError as error:
        refused = str(error)
    return {"bare": bare, "ours": {"way": ways, "refused": refused}}


def main() -> None:
    accel_config, folder, name = sys.argv[1:]
    found = {"replicas": replicas, "engine": engine}[name](accel_config, Path(folder))
    if dist.get_rank() == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    trainer.run(main)
