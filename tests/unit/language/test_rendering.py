"""The parts of a rendered conversation, and which message wrote each of them."""

from __future__ import annotations

from typing import Any

import pytest
from chats import ANSWERS_IN_TURN, CALLING, ENDS_TEXT, ENDS_TURNS, FILTERED
from tiny_language import MARKED, UNMARKED, conversation, tokenizer

from trainer.language.rendering import NOBODY, Renderer, Unclear, common_prefix_length

TALK = conversation("Hi", "Good", "And you?", "Fine")["messages"]


def parts_of(template: str, messages: list[dict[str, Any]], **options: Any) -> list[Any]:
    """The text of each part, with the message that wrote it."""
    text, parts = Renderer(tokenizer(), template).parts(messages, {}, **options)
    assert "".join(text[part.start : part.end] for part in parts) == text
    return [(part.message, text[part.start : part.end]) for part in parts]


def test_each_message_writes_its_own_part() -> None:
    assert parts_of(UNMARKED, TALK[:2], generation_prompt=True) == [
        (0, "<|im_start|>user\nHi<|im_end|>\n"),
        (1, "<|im_start|>assistant\nGood<|im_end|>\n"),
        (NOBODY, "<|im_start|>assistant\n"),
    ]


def test_a_loop_inside_of_a_message_writes_for_that_message() -> None:
    messages = [dict(message) for message in CALLING]
    messages[1]["tool_calls"] = [{"function": {"name": "get_time", "arguments": {"zone": "CET"}}}]
    found = parts_of(ENDS_TURNS, messages)
    assert [message for message, _ in found] == [0, 1, 2, 3]
    assert found[2] == (2, "get_time:noon<|im_end|>"), "the name is looked up in a loop of its own"


def test_the_answer_of_a_tool_is_the_tools_also_inside_of_a_call() -> None:
    messages = [{"content": "", **message} for message in CALLING]
    messages[1]["tool_calls"] = [{"function": {"name": "get_time", "arguments": {"zone": "CET"}}}]
    written = [message for message, text in parts_of(ANSWERS_IN_TURN, messages)]
    assert written == [0, 1, 2, 1, 3]


def test_a_template_that_processes_its_own_output_is_unclear() -> None:
    with pytest.raises(Unclear):
        parts_of(FILTERED, TALK)


def test_the_parts_between_generation_marks_are_those_of_the_assistant() -> None:
    renderer = Renderer(tokenizer(), MARKED)
    assert renderer.has_generation_marks
    text, parts = renderer.generated(TALK, {})
    assert [text[part.start : part.end] for part in parts] == ["Good<|im_end|>", "Fine<|im_end|>"]


@pytest.mark.parametrize(
    ("template", "opening"),
    [
        (UNMARKED, "<|im_start|>assistant\n"),
        (ENDS_TEXT, "<|im_start|>assistant\n"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}{{ eos_token }}", ""),
    ],
)
def test_the_opening_is_what_makes_the_assistant_speak(template: str, opening: str) -> None:
    assert Renderer(tokenizer(), template).opening(TALK[:1], {}) == opening


def test_common_prefix_of_two_texts_is_counted() -> None:
    assert common_prefix_length("abc", "abd") == 2
    assert common_prefix_length("ab", "abc") == 2
    assert common_prefix_length("", "a") == 0
