"""The page beside an exported model: what it was made from, and how it was evaluated."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..config.plain import plain
from ..optim.groups import group_texts
from ..reporting.machine import machine_text
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
        *_training(run),
        *_evaluation(run),
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
    listed = yaml.safe_dump(settings, sort_keys=False).strip()
    return ["", "## Settings", "", "```yaml", listed, "```"]


def _training(run: Mapping[str, Any]) -> list[str]:
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


def _evaluation(run: Mapping[str, Any]) -> list[str]:
    metrics = run["last_evaluation"]
    if not metrics:
        return []

    table = [f"| {name.removeprefix('eval/')} | {value:.6g} |" for name, value in metrics.items()]
    return ["", "## Evaluation", "", "| | |", "|---|---:|", *table]
