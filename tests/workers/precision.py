"""Run under several launch files, one after the other: the dtypes that a plan promises, on the
tensors themselves.

    ranks tests/workers/precision.py FOLDER ACCEL_CONFIG ...

The model is linear, and each of its gradients is a power of two or a small whole number: all exact
in bfloat16, so that what is measured is how gradients are added up. The first micro-batch of a step
has the gradient 256, the others 1, of which a sum in bfloat16 loses each. Leaves
``<folder>/found.json``: for each file and accumulation what was seen.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from of_all_ranks import leave, of_all
from torch import Tensor, nn

import trainer
from trainer import Plan, TrainConfig, launch
from trainer.strategies import Strategy

WIDTH = 32
ACCUMULATIONS = (
    (1, False),
    (16, False),
    (16, True),
)  # micro-batches, and whether each is exchanged
NAMES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class Linear(nn.Module):
    """A linear model with a frozen part and a buffer; its weights are no numbers of bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(WIDTH, 3, bias=False)
        self.frozen = nn.Linear(WIDTH, 3).requires_grad_(False)
        self.register_buffer("shift", torch.full((3,), 1 / 3))
        self.inside: list[torch.dtype] = []

    def forward(self, values: Tensor) -> Tensor:
        hidden = self.first(values)
        self.inside.append(hidden.dtype)
        return hidden + 0.0 * (self.frozen(values) + self.shift.to(hidden.dtype))


REDUCED: set[str] = (
    set()
)  # the dtypes of what was reduced; what DDP's own reducer sends does not pass by


def note_reductions() -> None:
    """Watch the functions that reduce, before a package takes hold of them."""
    for name in ("all_reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single"):
        if (reduce := getattr(dist, name, None)) is not None:
            setattr(dist, name, noting(reduce))


def noting(reduce: Any) -> Any:
    def noted(*tensors: Any, **more: Any) -> Any:
        REDUCED.update(
            NAMES[tensor.dtype]
            for tensor in (*tensors, *more.values())
            if isinstance(tensor, Tensor) and tensor.is_floating_point() and tensor.numel() >= WIDTH
        )
        return reduce(*tensors, **more)

    return noted


def gradients(strategy: Any) -> list[Tensor]:
    """The gradients as they wait for the optimizer."""
    zero = getattr(strategy, "zero", None)
    if zero is None:
        return [parameter.grad for parameter in strategy.trainable]
    if strategy.plan.strategy == "zero3":
        return [zero.grad_partitions_flat_buffer]
    return [tensor for group in zero.averaged_gradients.values() for tensor in group]


def look(strategy: Strategy, plan: Plan) -> dict[str, Any]:
    """Train one step, and tell what was seen on this rank."""
    model = Linear()
    built = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    strategy.prepare(model, optimizer)
    shards = list(strategy.shards())
    wanted = {s.name: built[s.name].flatten()[s.start : s.start + s.tensor.numel()] for s in shards}
    exact = all(torch.equal(shard.tensor.detach(), wanted[shard.name]) for shard in shards)
    before = {shard.name: shard.tensor.detach().clone() for shard in shards}
    steps = plan.accumulation_steps
    REDUCED.clear()
    for number in range(steps):
        with strategy.micro_step(boundary=number == steps - 1):
            loss = (
                strategy.model(torch.full((1, WIDTH), 256.0 if number == 0 else 1.0)).sum() / steps
            )
            strategy.backward(loss)
    seen = sorted(REDUCED)
    waiting = {NAMES[tensor.dtype] for tensor in gradients(strategy) if tensor is not None}
    strategy.finish_step()
    mean = (256.0 + steps - 1) / steps
    moved = [
        (before[shard.name] - shard.tensor.detach() - mean).abs().max()
        for shard in strategy.shards()
    ]
    return {
        "promised": plan.precision,
        "parameters": sorted({NAMES[shard.tensor.dtype] for shard in shards}),
        "compute": sorted({NAMES[dtype] for dtype in model.inside}),
        "gradients": sorted(waiting),
        "reduction": seen,
        "buffers": sorted({NAMES[buffer.dtype] for _, buffer in strategy.buffers()}),
        "exact": exact,
        "error": max((float(value) / mean for value in moved), default=0.0),
    }


def main() -> None:
    note_reductions()
    folder, found = Path(sys.argv[1]), {}
    for accel_config in sys.argv[2:]:
        for steps, each in ACCUMULATIONS:
            more: Any = {"accumulation_steps": steps, "sync_each_batch": each}
            config = TrainConfig(task="m:T", max_steps=1, micro_batch_size=1, **more)
            launched = launch(config, accel_config=accel_config)
            seen = of_all(look(launched.strategy, launched.plan))
            found[f"{Path(accel_config).stem} {steps}{' each' if each else ''}"] = seen
            launched.strategy.close()
    leave(folder / "found.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
