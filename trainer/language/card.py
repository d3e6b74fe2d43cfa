"""The README.md of an exported model: settings, training, evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from huggingface_hub import ModelCardData

from ..config.documents import to_yaml
from ..config.plain import plain
from ..text import hidden

TRAINING = (
    "run_name",
    "strategy",
    "world_size",
    "precision",
    "global_batch_size",
    "optimizer",
    "lr",
    "schedule",
    "step",
    "spent",
    "versions",
)


def model_card(task: Any, run: Mapping[str, Any], pipeline: str, title: str) -> str:
    """Return the README of a model, of the kind that the Hub calls ``pipeline``."""
    head = ModelCardData(
        library_name="peft" if task.adapter else "transformers",
        pipeline_tag=pipeline,
        tags=["samecurve"],
        base_model=task.model,
    )
    sections = {
        "Settings": hidden({k: value for k, value in plain(task).items() if value is not None}),
        "Training": {key: run[key] for key in TRAINING},
        "Evaluation": run["last_evaluation"],
    }
    text = f"---\n{head}\n---\n\n# {title}\n"
    for name, values in sections.items():
        if values:
            content = to_yaml(values)
            fence = "`" * (3 + content.count("`"))  # no text inside can end it
            text += f"\n## {name}\n\n{fence}yaml\n{content}{fence}\n"
    return text
