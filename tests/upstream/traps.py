"""Run by torchrun on two processes: what bare Accelerate makes of a case.

torchrun --nproc_per_node 2 tests/upstream/traps.py FOLDER replicas|engine|sharded
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import accelerate.accelerator
import torch
import torch.distributed as dist
from accelerate import Accelerator, DeepSpeedPlugin, FullyShardedDataParallelPlugin, PartialState
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import DataLoaderConfiguration, DistributedType, set_seed
from torch import nn
from torch.utils.data import DataLoader
from trap_models import MODELS, Heads, Line, Scaled

import trainer
from trainer.strategies.deepspeed_start import without_compiled_op

SAMPLES = 9


def forget() -> None:
    """Make the next Accelerator start from the environment, as the first one did."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    os.environ.pop("ACCELERATE_USE_FSDP", None)


def everyone(mine: Any) -> list[Any]:
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, mine)
    return told


def replicas() -> dict[str, Any]:
    believed = Accelerator().num_processes
    forget()
    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    became = type(Accelerator(cpu=True, fsdp_plugin=plugin).prepare(Line())).__name__
    forget()
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
    return {
        "processes": believed,
        "sharded": became,
        "schedule": [schedule.scheduler.last_epoch, steps],
        "short window": gradients,
        "samples": sorted(n for part in everyone(seen) for n in part),
        "gathered means": float(values.mean()),
        "reduced mean": float(accelerator.reduce(mine.mean(), "mean")),
        "own orders": sorted(n for part in everyone(shuffled()) for n in part),
    }


def shuffled() -> list[float]:
    """This process's share of a shuffled epoch, with a seed of its own for dropout as the
    documentation has it.
    """
    accelerator = Accelerator(
        cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True)
    )
    set_seed(0, device_specific=True)
    loader = DataLoader(torch.arange(8.0), batch_size=1, shuffle=True)
    return [float(batch) for batch in accelerator.prepare(loader)]


def bare_engine(
    model: nn.Module, stage: int = 2, precision: str = "no", accumulation: int = 1, **zero: Any
) -> tuple[Accelerator, Any, Any]:
    """Prepare a model as Accelerate does it, with an optimizer of learning rate 1."""
    AcceleratorState._reset_state()
    GradientState._reset_state()
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "zero_optimization": {
            "stage": stage,
            "reduce_bucket_size": 1000,
            **zero,
        },  # by default a buffer of 2 GB
    }
    plugin = DeepSpeedPlugin(hf_ds_config=config)
    accelerator = Accelerator(deepspeed_plugin=plugin, mixed_precision=precision)
    return (accelerator, *accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0)))


def engine() -> dict[str, Any]:
    os.environ.update(ACCELERATE_USE_DEEPSPEED="true", DS_ACCELERATOR="cpu")
    without_compiled_op()
    PartialState(backend="gloo")
    bare: dict[str, Any] = {"way": {}}
    for limit in (None, 0.25):
        line = Line()
        accelerator, model, optimizer = bare_engine(line, accumulation=2)
        bare["accumulation"] = accelerator.gradient_accumulation_steps
        for _ in range(2):
            with accelerator.accumulate(model):
                accelerator.backward(model(torch.tensor([[10.0, 0.0]])).mean())
                bare["after backward"] = float(line.weight.detach().norm())
                if limit is not None:
                    accelerator.clip_grad_norm_(model.parameters(), limit)
                optimizer.step()
                optimizer.zero_grad()
        bare["way"][str(limit)] = float(line.weight.detach().norm())
        model.destroy()
    bare |= bare_failures() | {"heads": bare_heads()}
    _, model, _ = bare_engine(Line(), precision="bf16")
    bare["exchanged in"] = str(model.communication_data_type)
    model.destroy()
    return bare


def bare_failures() -> dict[str, str]:
    """What ends a start: a bucket of "auto" beside a model without a config, a scalar; and
    offloading SGD.
    """
    found = {}
    exchange = accelerate.accelerator.map_pytorch_optim_to_deepspeed

    def refuse(optimizer: Any) -> Any:  # it would compile DeepSpeed's Adam
        raise TypeError(f"{type(optimizer).__name__} would be replaced")

    accelerate.accelerator.map_pytorch_optim_to_deepspeed = refuse
    settings: dict[str, tuple[type[nn.Module], dict[str, Any]]] = {
        "auto": (Line, {"reduce_bucket_size": "auto"}),
        "scalar": (Scaled, {}),
        "offload": (Line, {"offload_optimizer": {"device": "cpu"}}),
    }
    for name, (model, zero) in settings.items():
        try:
            bare_engine(model(), **zero)
            found[name] = ""
        except (ValueError, RuntimeError, TypeError) as error:
            found[name] = str(error)
    accelerate.accelerator.map_pytorch_optim_to_deepspeed = exchange
    return found


def bare_heads() -> list[float]:
    """How far each head went, where each rank's samples reach one of them."""
    heads = Heads()
    accelerator, model, _ = bare_engine(heads)
    accelerator.backward(model(torch.tensor([[0.1 + 0.2 * dist.get_rank(), 0.0]])).mean())
    moved = [round(float(head.weight.detach().norm()), 4) for head in heads.heads]
    model.destroy()
    return moved


def sharded() -> dict[str, Any]:
    os.environ["ACCELERATE_TORCH_DEVICE"] = "cpu"
    bare = {}
    for name in ("line", "scaled", "tail", "nested"):
        forget()
        PartialState(backend="gloo")._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="TRANSFORMER_BASED_WRAP"
        )
        accelerator, model = Accelerator(fsdp_plugin=plugin), MODELS[name]()
        try:
            model, _ = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
            accelerator.backward(model(torch.ones(1, 2)).mean())
            bare[name] = type(model).__name__
        except (ValueError, RuntimeError, TypeError) as error:
            bare[name] = str(error)
    return bare


def main() -> None:
    folder, name = sys.argv[1:]
    found = {"replicas": replicas, "engine": engine, "sharded": sharded}[name]()
    if dist.get_rank() == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    trainer.run_and_exit(main)
