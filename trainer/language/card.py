"""The page that lies beside an exported model: what it was made from, and what was measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..config.plain import plain
from ..optim.groups import group_texts
from ..reporting.machine import machine_text

if TYPE_CHECKING:
    from .base import TokenTask
    from .classifier import SequenceClassifier

SHOWN_APART = ("data", "evaluation", "model", "cache_dir")  # or of no matter to who reads it


def model_card(
    task: TokenTask | SequenceClassifier, run: Mapping[str, Any], pipeline: str, title: str
) -> str:
    """Return the README of a model: YAML for the Hub, then data, settings, how it was trained, the
    last evaluation.

    Args:
        run: as of ``Task.model_card``.
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
    lines += [
        f"- {key}: {task.memory[key]}" for key in ("data", "evaluation") if key in task.memory
    ]
    fields = [
        one.name for one in dataclasses.fields(task) if one.init and one.name not in SHOWN_APART
    ]
    settings = {
        name: plain(getattr(task, name)) for name in fields if getattr(task, name) is not None
    }
    lines += [
        "",
        "## Settings",
        "",
        "```yaml",
        yaml.safe_dump(settings, sort_keys=False).strip(),
        "```",
    ]
    lines += ["", "## Training", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {text} |" for name, text in _training(run).items()]
    if found := run["last_evaluation"]:
        lines += ["", "## Evaluation", "", "| | |", "|---|---:|"]
        lines += [
            f"| {name.removeprefix('eval/')} | {value:.6g} |" for name, value in found.items()
        ]
    return "\n".join([*lines, ""])


def _training(run: Mapping[str, Any]) -> dict[str, str]:
    """Return what a run says of itself, by name."""
    spent, machines = (
        run["spent"],
        f" on {run['num_machines']} machines" if run["num_machines"] > 1 else "",
    )
    shared, groups = group_texts(run["optimizer_groups"], {"lr": run["lr"]})
    tokens = {"tokens learnt": f"{spent['tokens']:,.0f}"} if spent["tokens"] else {}
    return {
        "strategy": run["strategy"],
        "processes": f"{run['world_size']}{machines}",
        "precision": ", ".join(f"{part} {dtype}" for part, dtype in run["precision"].items()),
        "global batch": f"{run['global_batch_size']} rows",
        "optimizer": f"{run['optimizer']}, lr {run['lr']:g}, {run['schedule']}; {'; '.join([shared, *groups])}",
        "steps": f"{run['step']:,}",
        **tokens,
        "time": f"{spent['seconds'] / 3600:.2f} hours",
        "machine": machine_text(run["machine"]),
        "versions": ", ".join(f"{name} {version}" for name, version in run["versions"].items()),
    }
