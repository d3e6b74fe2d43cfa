"""The chat template is the tokenizer's, one by name, a file, or text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chats import template_file, trained_texts
from tiny_language import MARKED, UNMARKED

from trainer import ConfigError
from trainer.language import CausalLM


def test_a_template_is_named_given_as_text_or_one_of_the_tokenizers(
    chats: str, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    def ends(template: str | None, own: Any = MARKED) -> list[str]:
        causal = task(data=chats, template=template, packing="none")
        causal.load_tokenizer().chat_template = own
        return sorted(text[-6:] for text in trained_texts(causal))

    named = {"default": UNMARKED, "tool_use": UNMARKED.replace("<|im_end|>", "<|tool|>")}
    assert (
        ends("chatml")
        == ends(UNMARKED)
        == ends(None, named)
        == ends(template_file(tmp_path, UNMARKED))
    )
    assert ends("tool_use", named) == ["tool|>\n"[-6:]] * 3
    with pytest.raises(
        ConfigError, match=r"'chatlm': there is no such template; .* chatml, alpaca"
    ):
        ends("chatlm")
    for own in (None, {"rag": UNMARKED}):
        with pytest.raises(
            ConfigError, match=r"'default': there is no such template; .* chatml, alpaca"
        ):
            ends(None, own)
