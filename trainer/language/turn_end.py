"""The tokens that end what the assistant says, so that an exported model stops where it has learnt
to.
"""

from __future__ import annotations

from typing import Any

from .chat import WORDS, ChatWriter
from .templates import ChatTemplate


def turn_ends(tokenizer: Any, template: ChatTemplate) -> list[int]:
    """Return the tokens that end a turn of the assistant: of an answer, then of a call of a tool
    where it is another.

    It is the last token of its own in a turn (``<|im_end|>``, ``</s>``), not a text of several
    tokens. None: the template writes none, or the tokenizer does not know it.
    """
    writer = ChatWriter(tokenizer, template)
    found: list[int] = []
    for turn, last in ((writer.try_answer(), WORDS), (writer.try_call(), "y_one")):
        behind = turn.rpartition(last)[2] if last in turn else ""
        coded = tokenizer(behind, add_special_tokens=False)["input_ids"] if behind else []
        ends = [token for token in coded if token in tokenizer.added_tokens_decoder]
        found += [token for token in ends[-1:] if token not in found]
    return found


def notice_of_turn_end(tokenizer: Any, template: ChatTemplate) -> list[str]:
    """Return a line for a template whose turns do not end with a token."""
    if turn_ends(tokenizer, template):
        return []
    behind = ChatWriter(tokenizer, template).try_answer().rpartition(WORDS)[2].strip()
    why = (
        f"writes {behind!r}, which the tokenizer takes apart"
        if behind
        else "writes nothing behind it"
    )
    return [
        f"template: no token ends a turn of the assistant (it {why}), so generation has nothing to stop at"
    ]
