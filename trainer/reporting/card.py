"""Sections of the page beside a model, and a page of these alone: training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..text import is_headline


def plain_card(
    title: str, task: str, run: Mapping[str, Any], evaluation: Mapping[str, float]
) -> str:
    """Return the README of a model whose task writes none.

    Args:
        task: ``module:Class``.
        run: as given to ``Task.model_card``.
        evaluation: the values to list.
    """
    shown = {name: value for name, value in evaluation.items() if is_headline(name)}
    about = f"A model of the task `{task}`. `trainer.load_export(model, FOLDER)` loads its tensors."
    head = ["---", "tags:", "- samecurve", "---", "", f"# {title}", "", about]
    return "\n".join([*head, *run_lines(run, shown), ""])


def run_lines(run: Mapping[str, Any], evaluation: Mapping[str, float]) -> list[str]:
    """Return the sections on how a model was trained and evaluated.

    Args:
        run: as given to ``Task.model_card``.
        evaluation: the values to list.
    """
    spent = run["spent"]
    rows = {
        "run": run["run_name"],
        "strategy": run["strategy"],
        "processes": run["world_size"],
        "precision": ", ".join(f"{part} {dtype}" for part, dtype in run["precision"].items()),
        "global batch": f"{run['global_batch_size']} rows",
        "optimizer": f"{run['optimizer']}, lr {run['lr']:g}, {run['schedule']}",
        "steps": f"{run['step']:,}",
        "time": f"{spent['seconds'] / 3600:.2f} hours",
        "versions": ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
    }
    if spent["tokens"]:
        rows["tokens trained on"] = f"{spent['tokens']:,.0f}"
    lines = ["", "## Training", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in rows.items()]
    if evaluation:
        lines += ["", "## Evaluation", "", "| | |", "|---|---:|"]
    for name, value in evaluation.items():
        lines.append(f"| {name.removeprefix('eval/')} | {value:.6g} |")
    return lines
