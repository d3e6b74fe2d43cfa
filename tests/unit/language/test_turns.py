"""Conversations as tokens with the spans of each turn."""

from __future__ import annotations

from typing import Any

import pytest
from chats import ENDS_TEXT
from tiny_language import MARKED, UNMARKED, conversation, tokenizer

from trainer import ConfigError
from trainer.language import tokenize_rows

ROW = conversation("Hello", "Good day", "Why?", "Because.")


def spans(row: dict[str, Any], template: str | None = None) -> list[tuple[str, str, bool]]:
    own = tokenizer()
    [(ids, turns)] = tokenize_rows(own, [row], template)
    return [(role, own.decode(ids[start:end]), trained) for role, start, end, trained in turns]


@pytest.mark.parametrize("template", [MARKED, UNMARKED, ENDS_TEXT])
def test_each_turn_has_the_tokens_that_its_message_wrote(template: str) -> None:
    (role, said, _), (_, good, _), (*_, is_learnt), (_, because, _), *behind = spans(ROW, template)
    assert role == "user" and "Hello" in said and not is_learnt
    assert good.startswith("Good day<|im_end|>") and because.startswith("Because.<|im_end|>")
    assert all(role == "assistant" and trained for role, _, trained in behind)


def test_the_turns_of_a_prompt_are_not_learnt() -> None:
    row = {"prompt": ROW["messages"][:3], "completion": ROW["messages"][3:]}
    assert [trained for *_, trained in spans(row)] == [False, False, False, True]


def test_a_bad_row_is_named() -> None:
    rows = [ROW, {"messages": [{"role": "user"}]}]
    with pytest.raises(ConfigError, match="row 2 message 1"):
        list(tokenize_rows(tokenizer(), rows))


@pytest.mark.parametrize(
    ("row", "rule"),
    [
        ({"text": "Hello"}, "messages_column: 'messages': is a NoneType in row 1, which has text"),
        (
            {"prompt": "Why?", "completion": "Because."},
            "completion_column: 'completion': is a str in row 1, which has prompt, completion",
        ),
    ],
)
def test_texts_are_refused(row: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        list(tokenize_rows(tokenizer(), [row]))
