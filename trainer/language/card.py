"""The page beside an exported model: settings, training, evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.documents import to_yaml
from ..config.plain import plain
from ..text import hidden
from .base import LanguageTask


def model_card(task: LanguageTask, run: Mapping[str, Any], pipeline: str, title: str) -> str:
    """Return the README of a model: YAML for the Hub, then settings, training, evaluation.

    Args:
        run: as given to ``Task.model_card``.
        pipeline: how the Hub calls such models, such as text-generation.
    """
    settings = {key: value for key, value in plain(task).items() if value is not None}
    head = {
        "library_name": "transformers" if task.adapter is None else "peft",
        "pipeline_tag": pipeline,
        "tags": ["samecurve"],
    }
    if task.model is not None:
        head["base_model"] = task.model

    spent = run["spent"]
    training = {
        "run": run["run_name"],
        "strategy": run["strategy"],
        "processes": run["world_size"],
        "precision": _pairs(run["precision"]),
        "global batch": f"{run['global_batch_size']} rows",
        "optimizer": f"{run['optimizer']}, lr {run['lr']:g}, {run['schedule']}",
        "steps": f"{run['step']:,}",
        "time": f"{spent['seconds'] / 3600:.2f} hours",
        "versions": _pairs(run["versions"]),
    }
    if spent["tokens"]:
        training["tokens trained on"] = f"{spent['tokens']:,.0f}"
    measured = run["last_evaluation"].items()
    evaluation = {name.removeprefix("eval/"): f"{value:.6g}" for name, value in measured}
    return (
        f"---\n{to_yaml(head)}---\n\n# {title}\n\n"
        f"## Settings\n\n```yaml\n{to_yaml(hidden(settings))}```\n"
        f"{_table('Training', training)}{_table('Evaluation', evaluation)}"
    )


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _table(title: str, rows: Mapping[str, Any]) -> str:
    """Return a section with a table of names and values. Empty without rows."""
    lines = [f"| {name} | {value} |\n" for name, value in rows.items()]
    return f"\n## {title}\n\n| | |\n|---|---|\n{''.join(lines)}" if rows else ""
