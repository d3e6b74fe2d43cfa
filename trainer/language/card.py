"""The page beside an exported model: settings, training, evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.plain import plain
from ..text import hidden
from .base import LanguageTask


def model_card(task: LanguageTask, run: Mapping[str, Any], pipeline: str, title: str) -> str:
    """Return the README of a model: YAML for the Hub, then settings, training, evaluation.

    Args:
        run: as given to ``Task.model_card``.
        pipeline: how the Hub calls such models, such as text-generation.
    """
    import yaml

    head = {
        "library_name": "transformers" if task.adapter is None else "peft",
        "pipeline_tag": pipeline,
        "tags": ["samecurve"],
    }
    if task.model is not None:
        head["base_model"] = task.model
    settings = {key: value for key, value in plain(task).items() if value is not None}
    lines = [
        *("---", yaml.safe_dump(head, sort_keys=False).strip(), "---", "", f"# {title}"),
        *("", "## Settings", "", "```yaml"),
        *(yaml.safe_dump(hidden(settings), sort_keys=False).strip(), "```"),
        *_run_lines(run, run["last_evaluation"]),
        "",
    ]
    return "\n".join(lines)


def _run_lines(run: Mapping[str, Any], evaluation: Mapping[str, float]) -> list[str]:
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
