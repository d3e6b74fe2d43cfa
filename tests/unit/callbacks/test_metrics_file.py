"""Rows of metrics.jsonl."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from fake_run import fake_run, step_info

from trainer.callbacks.metrics_file import MetricsFile


def rows_of(**values: Any) -> list[dict[str, float]]:
    rows: list[dict[str, float]] = []
    run = fake_run(directory=SimpleNamespace(row=rows.append))
    MetricsFile().on_step(run, step_info(4, **values))
    return rows


def test_an_evaluation_is_a_row_of_its_own_with_its_position() -> None:
    evaluation = {"step": 4, "epoch": 0.5, "samples": 32, "eval/loss": 0.25}
    assert rows_of(evaluation={"eval/loss": 0.25}) == [evaluation]
    both = rows_of(metrics={"step": 4, "loss": 0.5}, evaluation={"eval/loss": 0.25})
    assert both == [{"step": 4, "loss": 0.5}, evaluation]
