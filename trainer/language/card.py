"""The page that lies beside an exported model: what it was made from, and what was measured."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ..config.fingerprint import plain

if TYPE_CHECKING:
    from .causal import CausalLM
    from .classifier import SequenceClassifier

SHOWN_APART = ("data", "evaluation", "model", "cache_dir")  # or of no matter to who reads it


def model_card(task: CausalLM | SequenceClassifier, pipeline: str, title: str) -> str:
    """Return the README of a model: YAML for the Hub, then data, settings and the last evaluation.

    Args:
        pipeline: what the Hub calls such models.
    """
    import yaml

    head: dict[str, Any] = {
        "library_name": "transformers" if task.adapter is None else "peft",
        "pipeline_tag": pipeline,
        "tags": ["samecurve"],
    }
    head |= {"base_model": task.model} if task.model is not None else {}
    names = task.data if isinstance(task.data, list) else [task.data]
    origin = f"Fine-tuned from {task.model}" if task.model is not None else "Trained from scratch"
    lines = ["---", yaml.safe_dump(head, sort_keys=False).strip(), "---", "", f"# {title}", ""]
    lines += [f"{origin}.", "", "## Data", ""]
    lines += [f"- {name}" for name in names]
    lines += [f"- {key}: {task.memory[key]}" for key in ("data", "evaluation") if key in task.memory]
    fields = [one.name for one in dataclasses.fields(task) if one.init and one.name not in SHOWN_APART]
    settings = {name: plain(getattr(task, name)) for name in fields if getattr(task, name) is not None}
    lines += ["", "## Settings", "", "```yaml", yaml.safe_dump(settings, sort_keys=False).strip(), "```"]
    if found := task.memory.get("metrics"):
        lines += ["", "## Evaluation", "", "| | |", "|---|---:|"]
        lines += [f"| {name} | {value:.6g} |" for name, value in found.items()]
    return "\n".join([*lines, ""])
