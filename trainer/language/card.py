"""The page beside an exported model: its data and settings, how it was trained and evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.plain import plain
from ..reporting.card import run_lines
from ..text import hidden
from .base import LanguageTask


def model_card(task: LanguageTask, run: Mapping[str, Any], pipeline: str, title: str) -> str:
    """Return the README of a model: YAML for the Hub, then data, settings, training, evaluation.

    Args:
        run: as given to ``Task.model_card``.
        pipeline: how the Hub calls such models, such as text-generation.
    """
    import yaml

    head: dict[str, Any] = {
        "library_name": "transformers" if task.adapter is None else "peft",
        "pipeline_tag": pipeline,
        "tags": ["samecurve"],
    }
    if task.model is not None:
        head["base_model"] = task.model
    start = "Trained from scratch." if task.model is None else f"Fine-tuned from {task.model}."

    data = [task.data] if isinstance(task.data, str) else task.data
    settings = {key: value for key, value in plain(task).items() if value is not None}
    for key in ("data", "evaluation", "model", "cache_dir"):
        settings.pop(key, None)
    lines = [
        *("---", yaml.safe_dump(head, sort_keys=False).strip(), "---", ""),
        *(f"# {title}", "", start, "", "## Data", "", *(f"- {name}" for name in data)),
        *("", "## Settings", "", "```yaml"),
        *(yaml.safe_dump(hidden(settings), sort_keys=False).strip(), "```"),
        *run_lines(run, run["last_evaluation"]),
        "",
    ]
    return "\n".join(lines)
