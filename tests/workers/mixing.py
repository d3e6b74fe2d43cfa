"""Run as connected processes under one layout: mixtures and blocks of files, whole and resumed.

    tests/workers/mixing.py '{"accel_config": ..., "folder": ..., "micro_batch_size": ..., "resume": ...}'

``resume`` is the folder of another layout's runs, of which each is gone on with from step 6.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from datasets import Dataset
from of_all_ranks import leave
from torch import Generator, Tensor, nn

import trainer
from trainer import Data, Task, TrainConfig, Trainer
from trainer.launching import launch

GLOBAL_BATCH, STEPS, SAVED_AT = 24, 12, 6
SIZES = {"code": 90, "web": 20, "maths": 400}


class Values:
    """Random numbers and their classes."""

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.x = torch.randn(size, 6, generator=generator)
        self.label = torch.full((size,), seed)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index], self.label[index]


@dataclass(frozen=True, kw_only=True)
class Mixture(Task):
    """Tells sources apart, with noise that belongs to the sample and the pass."""

    def build_data(self) -> Data:
        code, web, maths = (Values(size, seed) for seed, size in enumerate(SIZES.values()))
        train = trainer.mixed({"code": (code, 0.5), "web": (web, 0.25, 2), "maths": (maths, 0.25)})

        def augment(item: tuple[Tensor, Tensor], generator: Generator) -> tuple[Tensor, Tensor]:
            return item[0] + 0.1 * torch.randn(6, generator=generator), item[1]

        return Data(train=train, evaluation=maths, augment=augment)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])


@dataclass(frozen=True, kw_only=True)
class OnBlocks(Task):
    """Rows of files that are read in blocks."""

    files: str

    def build_data(self) -> Data:
        cache = str(Path(self.files).parent / "cache")
        rows, evaluated = (trainer.blocks(self.files, lines=10, cache_dir=cache) for _ in range(2))

        def collate(rows: list[dict[str, float]]) -> tuple[Tensor, Tensor]:
            x = torch.tensor([[row["id"] % 7 - 3.0, row["id"] / 300] for row in rows])
            return x, torch.tensor([row["label"] for row in rows])

        return Data(train=rows, evaluation=evaluated, collate=collate)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 3))

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])


@dataclass(frozen=True, kw_only=True)
class OnShards(OnBlocks):
    """Rows of a stream, whose number nobody knows."""

    def build_data(self) -> Data:
        data = super().build_data()
        rows = Dataset.from_list([*data.evaluation])
        return replace(data, train=trainer.blocks(rows.to_iterable_dataset(num_shards=7)))


def task_of(name: str, given: Path) -> Task:
    if name == "own":
        return Mixture()
    if name == "blocks":
        return OnBlocks(files=str(given / "rows*.jsonl"))
    from trainer.language import DPO, CausalLM

    common: dict[str, Any] = {"model": str(given / "llama"), "cache_dir": str(given / "cache")}
    if name in ("streamed", "packed"):
        form = {"packing": "none", "long_documents": "cut"} if name == "streamed" else {}
        return CausalLM(
            data=str(given / "texts*.jsonl"),
            evaluation=str(given / "texts.jsonl"),
            stream=True,
            sequence_length=48,
            **form,
            **common,
        )
    if name == "preferences":
        pairs = [
            {"path": str(given / "pairs.jsonl"), "weight": 1, "max_samples": 20},
            {"path": str(given / "pairs.jsonl"), "weight": 3, "name": "all"},
        ]
        return DPO(data=pairs, sequence_length=96, adapter={"r": 4}, **common)
    sources = [
        {"path": str(given / "texts.jsonl"), "weight": 0.5, "passes": 1},
        {"path": str(given / "chats.jsonl"), "weight": 0.5},
    ]
    return CausalLM(data=sources, weight_by="tokens", sequence_length=64, **common)


def main() -> None:
    told = json.loads(sys.argv[1])
    folder, given = Path(told["folder"]), Path(told["given"])
    launched = None
    for name in told["names"]:
        before = told["resume"] and Path(told["resume"], name, "checkpoints", "step-00000006")
        task = task_of(name, given)
        config = TrainConfig(
            task=f"{type(task).__module__}:{type(task).__name__}",
            output_dir=str(folder / name),
            max_steps=STEPS,
            micro_batch_size=told["micro_batch_size"],
            global_batch_size=GLOBAL_BATCH,
            workers=1 if told["resume"] else 0,
            lr=0.01,
            eps=1e-4,
            log_every=1,
            save_every=SAVED_AT,
            resume=str(before or "none"),
        )
        launched = launch(config, accel_config=told["accel_config"])
        run = Trainer(task, config, launched)
        run.fit()
        found = {
            "world_size": run.run.accelerator.num_processes,
            "model_class": type(run.run.model).__name__,
        }
        run.close()
    leave(folder / "found.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
