"""What the lines of an evaluation say."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from one_process import fit, log_of, rows
from torch import nn

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


class Domains(Plain):
    """Metrics of two sets by name, and one per class."""

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        at = batch["at"].double()
        return {"clean/error": at, "noisy/error": at + 1, "recall": (torch.ones(3), torch.ones(3))}


def test_metrics_of_several_sets_are_shown_and_the_best_value_is_kept(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    fit(folder, Domains(), max_steps=4, eval_every=2, best_metric="eval/clean/error")
    lines = log_of(folder).splitlines()
    assert any(
        re.fullmatch(r"step 4/4  eval/clean/error [\d.]+  eval/noisy/error [\d.]+", line)
        for line in lines
    )
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["best"] == {
        "metric": "eval/clean/error",
        "value": summary["evaluation"]["eval/clean/error"],
        "step": 2,
    }
    done = next(line for line in lines if line.startswith("done:"))
    assert "eval/noisy/error" in done and re.search(
        r", best eval/clean/error [\d.]+ at step 2$", done
    )


class Weighted(Plain):
    """Weights of classes, which are no tokens."""

    def weight(self, batch: Any) -> Any:
        return (batch["at"] % 2 + 1.0).sum()


class Tokens(Weighted):
    counts_tokens = True


@pytest.mark.parametrize(("task", "unit"), [(Weighted(), "samples/s"), (Tokens(), "tokens/s")])
def test_the_unit_of_speed_is_what_the_task_says(task: Plain, unit: str, tmp_path: Path) -> None:
    fit(tmp_path / "run", task, max_steps=2, save_every=None)
    assert re.search(rf"norm [\d.]+  \d+ {unit}", log_of(tmp_path / "run"))
    assert any("tokens_per_second" in row for row in rows(tmp_path / "run")) == (unit == "tokens/s")
