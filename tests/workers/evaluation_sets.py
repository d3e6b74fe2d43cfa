"""Run on one or more ranks under one strategy: trainings with two evaluation sets, whose results go
to a JSON file.

tests/workers/evaluation_sets.py ACCEL_YAML FOLDER
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from of_all_ranks import leave
from rank_numbers import Images
from torch import nn
from torchmetrics import CatMetric, SpearmanCorrCoef
from torchmetrics.classification import MulticlassAccuracy

import trainer
from trainer import Data, EvaluationSet, TrainConfig, Trainer
from trainer.launching import launch


@dataclass(frozen=True, kw_only=True)
class TwoSets(Images):
    """Seven samples, which two ranks cannot share evenly, and one, which leaves a rank without."""

    def build_data(self) -> Data:
        data = super().build_data()
        one = EvaluationSet(
            data.evaluation[7:8],
            every=2,
            evaluation_step=self.measure_one,
            build_metrics=lambda: {"ids": CatMetric()},
        )
        seven = EvaluationSet(data.evaluation[:7], every="1/4 epoch")
        return Data(train=data.train, evaluation={"seven": seven, "one": one})

    def build_metrics(self) -> dict[str, Any]:
        return {"accuracy": MulticlassAccuracy(4, average="micro"), "order": SpearmanCorrCoef()}

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        logits, labels = model(batch["image"]), batch["label"]
        loss = nn.functional.cross_entropy(logits, labels, reduction="none")
        order = {"preds": logits[:, 0], "target": labels.float()}
        return {"loss": loss, "accuracy": (logits, labels), "order": order}

    def measure_one(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        logits = model(batch["image"])
        return {"logit": (logits.sum(0), float(len(logits))), "ids": batch["label"]}


def train(task: TwoSets, accel: str, folder: Path, **settings: Any) -> dict[str, Any]:
    """Train 12 steps of four samples with checkpoints, and return what is left of it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    config = TrainConfig(
        task="evaluation_sets:TwoSets",
        output_dir=str(folder),
        max_steps=12,
        micro_batch_size=4 // world,
        evaluation_batch_size=2,
        log_every=1,
        save_every="1/3 epoch",
        keep_last=9,
        optimizer="sgd",
        lr=0.05,
        best_metric="eval/seven/loss",
        **settings,
    )
    made = Trainer(task, config, launch(config, accel_config=accel))
    made.fit()

    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = ("step", "loss", "grad_norm")
    best = json.loads((folder / "best" / "best.json").read_text())
    return {
        "rows": [
            {key: value for key, value in row.items() if key in kept or key.startswith("eval/")}
            for row in rows
        ],
        "last": made.run.last_evaluation,
        "best": best,
        "summary": json.loads((folder / "summary.json").read_text())["best"],
        "world": made.run.plan.world_size,
        "model": type(made.run.model).__name__,
        "steps": sorted(path.name for path in (folder / "checkpoints").iterdir()),
        "saved": (folder / "model" / "model.safetensors").read_bytes().hex(),
        "kept": (folder / "best" / "model.safetensors").read_bytes().hex(),
    }


def main() -> None:
    accel, name = sys.argv[1:]
    folder = Path(name)
    restless = TwoSets(norm=True, dropout=0.2)
    resumed = str(folder / "restless" / "checkpoints" / "step-00000006")
    results = {
        "calm": train(TwoSets(norm=False), accel, folder / "calm"),
        "restless": train(restless, accel, folder / "restless"),
        "without": train(restless, accel, folder / "without", sanity_evaluation=False),
        "resumed": train(restless, accel, folder / "resumed", resume=resumed),
    }
    leave(folder / "results.json", results)


if __name__ == "__main__":
    torch.set_num_threads(1)
    trainer.run_and_exit(main)
