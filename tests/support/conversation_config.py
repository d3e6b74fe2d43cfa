"""A training config for a tiny language model on two conversations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_language import conversation, save_rows


def conversation_config(folder: Path, llama: Path, **settings: Any) -> list[str]:
    """The words that name a config for two short conversations, which share a row."""
    data = save_rows(
        folder / "a.jsonl", [conversation("Hello", "Good day"), conversation("Why?", "Because.")]
    )
    keys = {
        "model": llama,
        "data": data,
        "messages_column": "messages",
        "cache_dir": folder / "cache",
        **settings,
    }
    lines = [f"  {key}: {value}" for key, value in keys.items()]
    text = "\n".join(
        ["task: trainer.language:CausalLM", "task_settings:", *lines, "max_steps: 1", ""]
    )
    (folder / "train.yaml").write_text(text)
    return ["--config", str(folder / "train.yaml")]
