"""The tokens at which a model stops to generate, in the configuration of the model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .pretrained import configure


def end_with(model: Any, trained: Sequence[int], tokenizer: Any) -> list[str]:
    """Make a model stop at the tokens that end the texts of the training, and return a notice.

    The first becomes the ``eos_token_id`` of the configuration. The tokens at which the model
    stopped before stay, if the tokenizer has them: a new GPT-2 names 50,256, however small its
    vocabulary.
    """
    config = getattr(model, "generation_config", None)
    given = getattr(config, "eos_token_id", None)
    named = [given] if isinstance(given, int) else given or []
    before = [token for token in named if token < len(tokenizer)]
    if config is None or {*trained} <= {*before}:
        return []

    config.eos_token_id = ends = list(dict.fromkeys([*trained, *before]))
    configure(model, eos_token_id=trained[0])
    names = ", ".join(tokenizer.convert_ids_to_tokens(ends))
    return [f"generation: the exported model ends a text with {names}"]
