"""The tokens that end what a model generates: in its configuration, its tokenizer, its adapter."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any


def end_tokens(generation_config: Any) -> list[int]:
    """List the tokens that end what a model generates."""
    ends = getattr(generation_config, "eos_token_id", None)
    if ends is None:
        return []
    return [ends] if isinstance(ends, int) else list(ends)


def end_with(model: Any, trained: Sequence[int], tokenizer: Any) -> str:
    """Make a model end what it generates with the tokens that it is trained to end with.

    The tokens that it ended with before still end it.

    Args:
        model: changed in place.
        trained: tokens; the first one becomes the ``eos_token_id`` of the model's configuration.

    Returns:
        A notice of the change; empty where the model ends with these tokens already.
    """
    config = getattr(model, "generation_config", None)
    before = end_tokens(config)
    if config is None or set(trained) <= set(before):
        return ""

    ends = list(dict.fromkeys([*trained, *before]))
    config.eos_token_id = ends if len(ends) > 1 else ends[0]
    model.config.eos_token_id = trained[0]

    new = ", ".join(map(str, tokenizer.convert_ids_to_tokens(list(trained))))
    old = ", ".join(map(str, tokenizer.convert_ids_to_tokens(before))) or "nothing"
    return (
        f"generation: trained to end with {new}, and the exported model ends there; "
        f"the given model ended with {old}"
    )


def with_end(tokenizer: Any, trained: Sequence[int]) -> Any:
    """Return a tokenizer whose end of a text is one that was trained: itself or a changed copy."""
    if not trained or tokenizer.eos_token_id in trained:
        return tokenizer

    changed = copy.deepcopy(tokenizer)
    changed.eos_token = str(tokenizer.convert_ids_to_tokens(trained[0]))
    return changed
