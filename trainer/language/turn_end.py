"""The tokens at the end of the assistant's turn, where an exported model is to stop."""

from __future__ import annotations

from typing import Any

from .chat import WORDS, ChatWriter
from .templates import ChatTemplate


def turn_ends(tokenizer: Any, template: ChatTemplate) -> list[int]:
    """Return the tokens that end a turn of the assistant: an answer, then a call of a tool.

    It is the last token that the template writes (``<|im_end|>``, ``</s>``), not a text of several
    tokens.

    Returns:
        One token, or two where a call ends with another one. Empty where the template writes none
        that the tokenizer knows.
    """
    writer = ChatWriter(tokenizer, template)
    found: list[int] = []
    for turn, last in ((writer.try_answer(), WORDS), (writer.try_call(), "y_one")):
        behind = _behind(last, turn)
        if not behind:
            continue
        tokens = tokenizer(behind, add_special_tokens=False)["input_ids"]
        ends = [token for token in tokens if token in tokenizer.added_tokens_decoder]
        if ends and ends[-1] not in found:
            found.append(ends[-1])
    return found


def notice_of_turn_end(tokenizer: Any, template: ChatTemplate) -> list[str]:
    """Return a line for a template whose turns do not end with a token."""
    if turn_ends(tokenizer, template):
        return []

    behind = _behind(WORDS, ChatWriter(tokenizer, template).try_answer()).strip()
    if behind:
        reason = f"writes {behind!r}, which is no token of the tokenizer"
    else:
        reason = "writes nothing behind it"
    return [
        f"template: no token ends a turn of the assistant (it {reason}), so generation has nothing "
        "to stop at"
    ]


def _behind(word: str, turn: str) -> str:
    """Return what a turn holds behind the last occurrence of a word; nothing where it has none."""
    return turn.rpartition(word)[2] if word in turn else ""
