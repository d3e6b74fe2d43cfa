"""The page that lies beside an exported model: what it was made from, and what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..config.fingerprint import plain

if TYPE_CHECKING:
    from .causal import CausalLM

SHOWN_APART = ("data", "evaluation", "model", "cache_dir")  # or of no matter to who reads it


def model_card(task: CausalLM) -> str:
    """Return the README of a model: YAML for the Hub, then data, settings and the last evaluation."""
    import yaml

    head: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": "text-generation", "tags": ["samecurve"]}
    if task.adapter is not None:
        head["library_name"] = "peft"
    if task.model is not None:
        head["base_model"] = task.model
    names = task.data if isinstance(task.data, list) else [task.data]
    origin = f"fine-tuned from {task.model}" if task.model is not None else "trained from scratch"
    lines = ["---", yaml.safe_dump(head, sort_keys=False).strip(), "---", "", "# Causal language model", ""]
    lines += [f"A causal language model, {origin}.", "", "## Data", ""]
    lines += [f"- {name}" for name in names]
    lines += [f"- {key}: {task.memory[key]}" for key in ("data", "evaluation") if key in task.memory]
    settings = {key: value for key, value in settings_of(task).items() if key not in SHOWN_APART and value is not None}
    lines += ["", "## Settings", "", "```yaml", yaml.safe_dump(settings, sort_keys=False).strip(), "```"]
    if found := task.memory.get("metrics"):
        lines += ["", "## Evaluation", "", "| | |", "|---|---:|"]
        lines += [f"| {name} | {value:.6g} |" for name, value in found.items()]
    return "\n".join([*lines, ""])


def settings_of(task: CausalLM) -> dict[str, Any]:
    """Return the settings of a task as a file holds them."""
    import dataclasses

    return {one.name: plain(getattr(task, one.name)) for one in dataclasses.fields(task) if one.init}
