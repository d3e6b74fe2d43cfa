"""The parts of a rendered conversation, and which message wrote each of them."""

from __future__ import annotations

from typing import Any

from chats import ANSWERS_IN_TURN, CALLING, ENDS_TURNS
from tiny_language import UNMARKED, conversation, tokenizer

from trainer.language.chat import ChatWriter
from trainer.language.rendering import NOBODY

TALK = conversation("Hi", "Good", "And you?", "Fine")["messages"]


def parts_of(template: str, messages: list[dict[str, Any]], **options: Any) -> list[Any]:
    """The text of each part, with the message that wrote it."""
    writer = ChatWriter(tokenizer(), template)
    messages = [{"content": "", **message} for message in messages]
    text, parts = writer._parts(messages, {}, **options)
    assert "".join(text[part.start : part.end] for part in parts) == text
    return [(part.message, text[part.start : part.end]) for part in parts]


def test_each_message_writes_its_own_part() -> None:
    assert parts_of(UNMARKED, TALK[:2], prompt=True) == [
        (0, "<|im_start|>user\nHi<|im_end|>\n"),
        (1, "<|im_start|>assistant\nGood<|im_end|>\n"),
        (NOBODY, "<|im_start|>assistant\n"),
    ]


def test_a_loop_inside_of_a_message_writes_for_that_message() -> None:
    found = parts_of(ENDS_TURNS, CALLING)
    assert [message for message, _ in found] == [0, 1, 2, 3]
    assert found[2] == (2, "get_time:noon<|im_end|>"), "the name is looked up in a loop of its own"


def test_the_answer_of_a_tool_is_the_tools_also_inside_of_a_call() -> None:
    written = [message for message, _ in parts_of(ANSWERS_IN_TURN, CALLING)]
    assert written == [0, 1, 2, 1, 3]
