"""What the lines of an evaluation say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from one_process import fit, log_of, rows
from torch import nn

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


class Counting(Plain):
    """As a language task does it: the tokens of an evaluation are a sum."""

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        return {"tokens": (torch.tensor(1000.0), None)}


@pytest.mark.parametrize(("task", "speed"), [(Counting(), r"  \d+ tokens/s"), (Plain(), "")])
def test_an_evaluation_that_counts_tokens_says_how_many_a_second(task: Plain, speed: str, tmp_path: Path) -> None:
    """In the line alone: metrics.jsonl has what every run of the same numbers has."""
    fit(tmp_path / "run", task, max_steps=2, save_every=None)
    [line] = [line for line in log_of(tmp_path / "run").splitlines() if line.startswith("step 2/2  eval")]
    assert re.search(rf"step 2/2  eval/\w+ [\d.]+(  eval/\w+ [\d.]+)*{speed}$", line)
    [row] = [row for row in rows(tmp_path / "run") if any(key.startswith("eval/") for key in row)]
    assert {key for key in row if "second" in key} == set()
