"""The page beside an exported model: what it was made from, and how it was evaluated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..config.plain import plain
from ..reporting.card import evaluation_lines, training_lines
from ..text import hidden
from .base import LanguageTask

# Settings that have a place of their own in the card, or mean nothing to its readers.
NOT_LISTED = ("data", "evaluation", "model", "cache_dir")


def model_card(task: LanguageTask, run: Mapping[str, Any], pipeline: str, title: str) -> str:
    """Return the README of a model: YAML for the Hub, then data, settings, training, evaluation.

    Args:
        run: as given to ``Task.model_card``.
        pipeline: how the Hub calls such models, such as text-generation.
    """
    lines = [
        *_front_matter(task, pipeline),
        f"# {title}",
        "",
        *_data(task),
        *_settings(task),
        *training_lines(run),
        *evaluation_lines(run["last_evaluation"]),
        "",
    ]
    return "\n".join(lines)


def _front_matter(task: LanguageTask, pipeline: str) -> list[str]:
    import yaml

    head: dict[str, Any] = {
        "library_name": "transformers" if task.adapter is None else "peft",
        "pipeline_tag": pipeline,
        "tags": ["samecurve"],
    }
    if task.model is not None:
        head["base_model"] = task.model
    return ["---", yaml.safe_dump(head, sort_keys=False).strip(), "---", ""]


def _data(task: LanguageTask) -> list[str]:
    if task.model is None:
        lines = ["Trained from scratch."]
    else:
        lines = [f"Fine-tuned from {task.model}."]
    lines += ["", "## Data", ""]

    names = task.data if isinstance(task.data, list) else [task.data]
    lines += [f"- {name}" for name in names]
    sets = [key for key in task.memory if key.partition(".")[0] == "evaluation"]
    for key in ("data", *sets):
        if key in task.memory:
            lines.append(f"- {key}: {task.memory[key]}")
    return lines


def _settings(task: LanguageTask) -> list[str]:
    import yaml

    settings = {}
    for setting in dataclasses.fields(task):
        value = getattr(task, setting.name)
        if setting.init and setting.name not in NOT_LISTED and value is not None:
            settings[setting.name] = plain(value)
    listed = yaml.safe_dump(hidden(settings), sort_keys=False).strip()
    return ["", "## Settings", "", "```yaml", listed, "```"]
