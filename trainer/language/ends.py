"""What an exported model ends its text with: the tokens that it has learnt to end with."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def end_tokens(generation_config: Any) -> list[int]:
    """List the tokens that end what a model generates."""
    found = getattr(generation_config, "eos_token_id", None)
    if found is None:
        return []
    return [found] if isinstance(found, int) else list(found)


def end_with(model: Any, learnt: Sequence[int], tokenizer: Any) -> str:
    """Have a model end what it generates with tokens that it learns to end with; what it ended with
    does so still.

    Args:
        learnt: the first one becomes the model's own.

    Returns:
        What was changed, for people; empty where the model ends with them already.
    """
    config = getattr(model, "generation_config", None)
    before = end_tokens(config)
    if config is None or set(learnt) <= set(before):
        return ""

    ends = list(dict.fromkeys([*learnt, *before]))
    config.eos_token_id = ends if len(ends) > 1 else ends[0]
    model.config.eos_token_id = learnt[0]
    new = ", ".join(map(str, tokenizer.convert_ids_to_tokens(list(learnt))))
    old = ", ".join(map(str, tokenizer.convert_ids_to_tokens(before))) or "nothing"
    return f"generation: learns to end with {new}, and the exported model ends there; the one given ended with {old}"


def with_end(tokenizer: Any, learnt: Sequence[int]) -> Any:
    """Return a tokenizer whose end of a text is among the tokens that are learnt as such: itself or
    a copy.
    """
    if not learnt or tokenizer.eos_token_id in learnt:
        return tokenizer
    other = copy.deepcopy(tokenizer)
    other.eos_token = str(tokenizer.convert_ids_to_tokens(learnt[0]))
    return other


def read_ends(folder: Path, model: Any) -> None:
    """Have a model end with the tokens that are named beside its adapter, if any are."""
    file = folder / "generation_config.json"
    found = (
        json.loads(file.read_text(encoding="utf-8")).get("eos_token_id") if file.is_file() else None
    )
    if found is not None:
        model.generation_config.eos_token_id = found
