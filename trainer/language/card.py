"""The page beside an exported model: settings, training, evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..config.plain import plain
from ..reporting.card import run_lines
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
        *run_lines(run, run["last_evaluation"]),
        "",
    ]
    return "\n".join(lines)
