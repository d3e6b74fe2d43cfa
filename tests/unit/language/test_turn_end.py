"""The tokens that end a turn of the assistant are found."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from chats import ENDLESS, ENDS_TEXT, ENDS_TURNS, PARTS
from tiny_language import MARKED, tokenizer

from trainer.language.templates import ALPACA, CHATML, ChatTemplate
from trainer.language.turn_end import notice_of_turn_end, turn_ends


@pytest.mark.parametrize(
    ("template", "ends"),
    [
        (MARKED, ["<|im_end|>"]),
        (CHATML, ["<|im_end|>"]),
        (ALPACA, ["<|end|>"]),
        (ENDS_TEXT, ["<|im_end|>"]),
        (ENDS_TURNS, ["<|end|>", "<|im_end|>"]),
        (PARTS, ["<|im_end|>"]),
        (ENDLESS, []),
        (CHATML.replace("<|im_end|>", "</turn>"), []),
    ],
)
def test_the_tokens_that_end_a_turn_are_found(template: str, ends: Sequence[str]) -> None:
    """Of an answer first, then of a call of a tool where that ends otherwise."""
    read = ChatTemplate(text=template, origin="test")
    assert tokenizer().convert_ids_to_tokens(turn_ends(tokenizer(), read)) == ends
    notices = notice_of_turn_end(tokenizer(), read)
    assert len(notices) == (0 if ends else 1)
    assert ends or (
        ("writes nothing" in notices[0]) == (template == ENDLESS)
        and "nothing to stop at" in notices[0]
    )
