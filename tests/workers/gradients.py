"""Run by torchrun under each strategy: the gradient of one optimizer step against autograd in
float64.

The gradient is read off a real step of the real Trainer: with SGD and no momentum it is (before -
after) / lr. A learning rate of 1024 makes the step large beside the weights, so that float32 keeps
all of its digits: what is measured is the rounding of the gradient, not that of the weights. A
power of two rounds nothing itself.

    torchrun --nproc_per_node 2 tests/workers/gradients.py ACCEL_CONFIG FOLDER ACCUMULATION,...
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from of_all_ranks import leave, of_all
from torch import Tensor, nn

import trainer
from trainer import Data, Task, TrainConfig, Trainer, launch

LR = 1024.0
VOCABULARY, LENGTH, MICRO = 11, 6, 2
CLIP = 2.0**-7
MASKED = -100

# How many samples a step has, for the global batch, the samples of one micro-batch on all ranks,
# and the world size.
SIZES: dict[str, Callable[[int, int, int], int]] = {
    "full": lambda batch, block, world: batch,
    "ragged": lambda batch, block, world: batch - 1,  # the last micro-batch of one rank is short
    "rank empty": lambda batch, block, world: max(
        1, batch - block + world - 1
    ),  # one rank has none of the last block
    "one sample": lambda batch, block, world: 1,  # all ranks but one are empty
}


@dataclass(frozen=True, kw_only=True)
class Tokens(Task):
    """Classify the tokens of ``size`` random sequences; ``kind`` says how many of them count."""

    size: int
    kind: str

    def build_data(self) -> Data:
        generator = torch.Generator().manual_seed(1)
        ids, labels = torch.randint(VOCABULARY, (2, self.size, LENGTH), generator=generator)
        if self.kind == "unequal":  # from 1 to LENGTH tokens a sample
            kept = torch.randint(1, LENGTH + 1, (self.size, 1), generator=generator)
            labels[torch.arange(LENGTH) >= kept] = MASKED
        return Data(train=[{"ids": ids[i], "labels": labels[i]} for i in range(self.size)])

    def build_model(self) -> nn.Module:
        return nn.Sequential(
            nn.Embedding(VOCABULARY, 6),
            nn.Linear(6, 7),
            nn.LayerNorm(7),
            nn.Tanh(),
            nn.Linear(7, VOCABULARY),
        )

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(
            model(batch["ids"]).flatten(0, 1), batch["labels"].flatten(), ignore_index=MASKED
        )


class CountedTokens(Tokens):
    """The mean is over tokens that count."""

    def weight(self, batch: Any) -> Tensor:
        return (batch["labels"] != MASKED).sum()


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step: what is counted, how many samples, and how it is clipped."""

    accumulation: int
    kind: str
    size: str
    clip: float | None = None

    def __str__(self) -> str:
        clipped = ", clipped" if self.clip else ""
        return f"{self.kind}, {self.size}, accumulation {self.accumulation}{clipped}"


def cases(accumulations: Sequence[int]) -> Iterator[Case]:
    for accumulation in accumulations:
        for kind, sizes in (("examples", SIZES), ("equal", ("full", "ragged")), ("unequal", SIZES)):
            for size in sizes:
                yield Case(accumulation=accumulation, kind=kind, size=size)
        yield Case(accumulation=accumulation, kind="unequal", size="ragged", clip=CLIP)


def reference(task: Tokens) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the whole step at once: sum over all that counts, divided by how many
    they are.
    """
    torch.manual_seed(0)  # as the trainer builds its model
    model = task.build_model().double()
    rows = task.build_data().train
    ids, labels = (torch.stack([row[key] for row in rows]) for key in ("ids", "labels"))
    per_token = F.cross_entropy(
        model(ids).flatten(0, 1), labels.flatten(), ignore_index=MASKED, reduction="none"
    )
    loss = per_token.sum() / (labels != MASKED).sum()
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def measure(case: Case, accel_config: str, folder: Path) -> dict[str, float]:
    """Errors of one step on this rank, each relative to the size of what it is the error of."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    block = MICRO * world
    samples = SIZES[case.size](block * case.accumulation, block, world)
    task = (Tokens if case.kind == "examples" else CountedTokens)(size=samples, kind=case.kind)
    config = TrainConfig(
        task="gradients:Tokens",
        output_dir=str(folder),
        overwrite=True,
        max_steps=20,
        micro_batch_size=MICRO,
        accumulation_steps=case.accumulation,
        optimizer="sgd",
        momentum=0.0,
        weight_decay=0.0,
        lr=LR,
        max_grad_norm=case.clip,
        log_every=1,
    )
    running = Trainer(task, config, launch(config, accel_config=accel_config))
    before = weights(running)
    loss, expected = reference(task)
    infos = running.steps()
    info = next(infos)
    while (
        running.run.skipped_steps == info.step
    ):  # the fp16 scaler looks for its scale; every step has the same samples
        info = next(infos)
    infos.close()
    after = weights(running)
    running.run.agreement.close()
    running.run.close()

    assert info.metrics is not None and info.samples == info.step * samples
    gradient = {name: (before[name].double() - after[name].double()) / LR for name in before}
    norm = norm_of(expected)
    # torch and DeepSpeed both add 1e-6 to the norm that they divide by.
    factor = 1.0 if case.clip is None else min(1.0, case.clip / (norm + 1e-6))
    difference = {name: gradient[name] - factor * expected[name] for name in expected}
    return {
        "gradient": norm_of(difference) / (factor * norm),
        "loss": abs(info.metrics["loss"] - loss) / loss,
        "norm": abs(info.metrics["grad_norm"] - norm) / norm,
        "clipped to": factor,
    }


def weights(running: Trainer) -> dict[str, Tensor]:
    strategy = running.run.strategy
    return {
        name: strategy.gather(name, handle).clone()
        for name, _, _, handle in strategy.named_tensors()
    }


def norm_of(tensors: dict[str, Tensor]) -> float:
    return float(torch.stack([tensor.norm() for tensor in tensors.values()]).norm())


def main() -> None:
    accel_config, folder, accumulations = sys.argv[1:]
    results = {}
    for case in cases([int(text) for text in accumulations.split(",")]):
        mine = measure(case, accel_config, Path(folder) / "run")
        everyone = of_all(mine)
        results[str(case)] = {key: max(errors[key] for errors in everyone) for key in mine}
    leave(Path(folder) / "errors.json", results)


if __name__ == "__main__":
    trainer.run_and_exit(main)
