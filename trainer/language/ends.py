"""The tokens that end the text that a model generates: in its configuration and its tokenizer."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any


def end_with(model: Any, trained: Sequence[int], tokenizer: Any) -> str:
    """Make a model end its texts with the tokens that it is trained to end with.

    The tokens that it ended with before still end its texts.

    Args:
        model: changed in place.
        trained: tokens. The first one becomes the ``eos_token_id`` of the model's configuration.

    Returns:
        A notice of the change. Empty if the model ends with these tokens already.
    """
    config = getattr(model, "generation_config", None)
    given = getattr(config, "eos_token_id", None)
    before = given if isinstance(given, list) else [] if given is None else [given]
    if config is None or set(trained) <= set(before):
        return ""

    ends = list(dict.fromkeys([*trained, *before]))
    config.eos_token_id = ends if len(ends) > 1 else ends[0]
    model.config.eos_token_id = trained[0]
    names = ", ".join(map(str, tokenizer.convert_ids_to_tokens(ends)))
    return f"generation: the exported model ends its texts with {names}"


def with_end(tokenizer: Any, trained: Sequence[int]) -> Any:
    """Return a tokenizer whose end of a text is one that was trained: itself or a changed copy."""
    if not trained or tokenizer.eos_token_id in trained:
        return tokenizer

    changed = copy.deepcopy(tokenizer)
    changed.eos_token = str(tokenizer.convert_ids_to_tokens(trained[0]))
    return changed
