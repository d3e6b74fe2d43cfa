"""What the rows of two digests.jsonl say about a step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trainer import ConfigError
from trainer.commands.bits import first_difference, read_digests


def row(step: int, **changes: Any) -> dict[str, Any]:
    digests = {"micro_batches": [*"abcd"], "gradients": ["1", "2"], "weights": ["3", "4"]}
    return {"step": step, "world": 2, **digests, **changes}


def written(path: Path, *rows: dict[str, Any], end: str = "") -> Path:
    head = {"tensors": ["up", "down"], "begins": 0, "facts": {"torch": "2"}}
    path.write_text("".join(json.dumps(each) + "\n" for each in (head, *rows)) + end)
    return path


def test_the_first_step_micro_batch_and_tensor_are_named(tmp_path: Path) -> None:
    attempt, right = read_digests(written(tmp_path / "right", row(1), row(2)))
    tensors = attempt["tensors"]
    changed = row(2, micro_batches=["a", "x", "c", "x"], gradients=["1", "x"])
    _, wrong = read_digests(written(tmp_path / "wrong", row(1), changed))
    assert first_difference(tensors, wrong, right) == first_difference(tensors, right, wrong)
    assert first_difference(tensors, wrong, right) == (
        "step 2 differs: micro_batches 1 of rank 1, 2 of rank 1 (2 of 4); gradients down (1 of 2)"
    )
    assert first_difference(tensors, right, right) == ""


def test_the_last_attempt_counts_and_a_cut_row_does_not(tmp_path: Path) -> None:
    later = {"tensors": ["up", "down"], "begins": 1, "facts": {"torch": "3"}}
    rows = [row(1), row(2), row(3), later, row(2, world=4)]
    attempt, steps = read_digests(written(tmp_path / "found", *rows, end='{"step": 3, "wor'))
    assert list(steps) == [1, 2] and steps[2]["world"] == 4
    assert attempt["facts"] == {"torch": "3"}


def test_a_run_without_digests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was not trained with same_bits: true"):
        read_digests(tmp_path / "digests.jsonl")
