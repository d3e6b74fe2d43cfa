"""Sections of the page beside a model, and a page of these alone: training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..optim.groups import group_texts
from ..text import is_headline
from .machine import machine_text


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
    lines = [
        "---",
        "tags:",
        "- samecurve",
        "---",
        "",
        f"# {title}",
        "",
        f"A model of the task `{task}`. `model.safetensors` has its tensors under the names of",
        "`Task.build_model`; `trainer.load_export(model, FOLDER)` loads them.",
        *training_lines(run),
        *evaluation_lines(shown),
        "",
    ]
    return "\n".join(lines)


def training_lines(run: Mapping[str, Any]) -> list[str]:
    """Return the section on how a model was trained.

    Args:
        run: as given to ``Task.model_card``.
    """
    shared, groups = group_texts(run["optimizer_groups"], {"lr": run["lr"]})
    groups_text = "; ".join([shared, *groups])
    spent = run["spent"]

    processes = str(run["world_size"])
    if run["num_machines"] > 1:
        processes += f" on {run['num_machines']} machines"

    rows = {
        "run": run["run_name"],
        "strategy": run["strategy"],
        "processes": processes,
        "precision": ", ".join(f"{part} {dtype}" for part, dtype in run["precision"].items()),
        "global batch": f"{run['global_batch_size']} rows",
        "optimizer": f"{run['optimizer']}, lr {run['lr']:g}, {run['schedule']}; {groups_text}",
        "steps": f"{run['step']:,}",
    }
    if spent["tokens"]:
        rows["tokens trained on"] = f"{spent['tokens']:,.0f}"
    rows["time"] = f"{spent['seconds'] / 3600:.2f} hours"
    rows["machine"] = machine_text(run["machine"])
    rows["versions"] = ", ".join(f"{name} {version}" for name, version in run["versions"].items())

    table = [f"| {name} | {text} |" for name, text in rows.items()]
    return ["", "## Training", "", "| | |", "|---|---|", *table]


def evaluation_lines(metrics: Mapping[str, float]) -> list[str]:
    """Return the section with the values of an evaluation; nothing where there are none."""
    if not metrics:
        return []

    table = [f"| {name.removeprefix('eval/')} | {value:.6g} |" for name, value in metrics.items()]
    return ["", "## Evaluation", "", "| | |", "|---|---:|", *table]
