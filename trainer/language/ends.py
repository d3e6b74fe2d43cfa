"""The tokens that end the text that a model generates, in its configuration."""

from __future__ import annotations

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
