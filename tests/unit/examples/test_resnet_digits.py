"""The ResNet's config holds, it trains on one process, and its loss is divided by what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from launchers import ROOT
from one_process import rows
from resnet_digits import ResNetDigits
from torch.utils.data import default_collate

import trainer
from trainer.commands.evaluate import evaluate

CONFIG = str(ROOT / "examples/configs/resnet_digits.yaml")


def test_the_resnet_trains_and_is_evaluated(tmp_path: Path) -> None:
    words = ["--config", CONFIG, "--output_dir", str(tmp_path / "run")]
    loaded = trainer.load_config([*words, "--max_steps", "6", "--log_every", "1"])
    task, config = trainer.load_task(loaded)
    launched = trainer.launch(config, origins=loaded.origins)
    training = trainer.Trainer(task, config, launched, origins=loaded.origins)
    training.fit()
    training.close()

    run = tmp_path / "run"
    steps = [row for row in rows(run) if "loss" in row]
    assert len(steps) == 6 and all(2 < row["loss"] < 3 for row in steps)
    assert all(row["lr/head"] == pytest.approx(3 * row["lr/body"]) for row in steps)

    measured = evaluate([str(run), "--predictions", str(tmp_path / "predictions.jsonl")])
    last = rows(run)[-1]
    assert measured["eval/noisy/error"] == last["eval/noisy/error"]
    lines = (tmp_path / "predictions.clean.jsonl").read_text().splitlines()
    predicted = [json.loads(line) for line in lines]
    right = [row["label"] == row["predicted"] for row in predicted]
    assert sum(right) / 360 == pytest.approx(measured["eval/clean/accuracy"])


def test_the_loss_of_the_resnet_is_torchs_with_class_weights() -> None:
    task = ResNetDigits()
    model, data = task.build_model(), task.build_data()
    batch = default_collate([data.train[index] for index in range(32)])
    labels, logits = batch["target"].argmax(1), model(batch["image"])
    expected = F.cross_entropy(logits, labels, weight=task.class_weights())
    model.train()
    torch.testing.assert_close(task.training_step(model, batch), expected)
    assert task.weight(batch) == task.class_weights()[labels].sum() > 32
