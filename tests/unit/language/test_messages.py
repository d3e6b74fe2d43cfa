"""Messages of any data set are brought to one form; their weights and settings are used."""

from __future__ import annotations

import json
from typing import Any

import pytest
from chats import CALL, encoder, trained_spans
from tiny_language import MARKED, conversation, tokenizer

from trainer import ConfigError
from trainer.language.messages import in_form, read_messages, thoughts_and_words
from trainer.language.templates import CHATML
from trainer.language.tokens import words_of


def test_tools_and_settings_of_a_row_reach_the_template() -> None:
    names = "{% for t in tools or [] %}{{ t.function.name }}{% endfor %}{{ mood }}"
    row = {**conversation("Hi", "Good"), "tools": []}
    more = {"tools": json.dumps([CALL]), "chat_template_kwargs": {"mood": "glad"}}
    for given, begin in (({**row, **more}, "get_timeglad"), (row, "sad")):
        [tokens] = encoder(names + CHATML, settings={"mood": "sad"}).encode([("row", given)])
        assert tokenizer().decode(words_of(tokens)).startswith(begin + "<|im_start|>user")


def test_messages_of_weight_0_and_those_of_a_prompt_are_not_trained_on() -> None:
    messages = conversation("a", "first", "c", "second")["messages"]
    pair = {"prompt": messages[:3], "completion": messages[3:]}
    names = {"kind": "prompt", "names": ("prompt", "completion")}
    assert trained_spans(CHATML, pair, **names) == ["second<|im_end|>\n"]
    messages[1]["weight"] = 0
    assert trained_spans(CHATML, {"messages": messages}) == ["second<|im_end|>\n"]
    assert trained_spans(MARKED, {"messages": messages}) == ["second<|im_end|>"]


@pytest.mark.parametrize(
    "said",
    [{"train": False}, {"training": False}, {"loss": 0.0}, {"mask": True}, {"masked": 1}],
    ids=str,
)
def test_messages_that_other_tools_leave_out_are_not_trained_on(said: dict[str, Any]) -> None:
    row = conversation("a", "first", "c", "second")
    row["messages"][1].update(said)
    row["messages"][3].update({key: not value for key, value in said.items()})
    assert trained_spans(CHATML, row) == ["second<|im_end|>\n"]


@pytest.mark.parametrize(
    "said",
    [
        {"loss": 0.5},
        {"train": "no"},
        {"mask": "all"},
        {"train_detail": [{"begin_offset": 0, "end_offset": 3, "train": False}]},
        {"content": [{"type": "text", "text": "a"}, {"text": "b", "train": False}]},
    ],
    ids=str,
)
def test_messages_that_other_tools_learn_in_part_are_refused(said: dict[str, Any]) -> None:
    row = conversation("a", "first")
    row["messages"][1].update(said)
    with pytest.raises(ConfigError, match=r"message 2': .* weight \(train, loss, ...\) 0 or 1"):
        trained_spans(CHATML, row)


CALL_TEXT = '{"zone": "CET"}'
IN_PARTS = [
    {"role": "user", "content": [{"type": "text", "text": "Hi"}]},
    {
        "role": "assistant",
        "content": [{"type": "text", "text": "Go"}, {"type": "text", "text": "od"}],
    },
]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Good"}]},
        {"messages": IN_PARTS},
        {"system": "Be brief.", "messages": conversation("Hi", "Good")["messages"]},
    ],
)
def test_other_forms_of_messages_are_read(row: dict[str, Any]) -> None:
    assert trained_spans(CHATML, row) == ["Good<|im_end|>\n"]


def test_a_function_call_as_text_is_refused() -> None:
    messages = [{"from": "human", "value": "Time?"}, {"from": "function_call", "value": "{}"}]
    with pytest.raises(ConfigError, match=r"row message 2': .* a call of a tool in tool_calls"):
        read_messages("row", "messages_column", messages)


@pytest.mark.parametrize(("as_text", "arguments"), [(False, {"zone": "CET"}), (True, CALL_TEXT)])
def test_arguments_of_a_call_are_text_or_a_mapping(as_text: bool, arguments: Any) -> None:
    for given in ({"zone": "CET"}, CALL_TEXT):
        call = {"function": {"name": "get_time", "arguments": given}}
        messages = [{"role": "assistant", "content": "", "tool_calls": [call]}]
        [message] = in_form(messages, arguments_as_text=as_text)
        assert message["tool_calls"][0]["function"]["arguments"] == arguments


def test_thoughts_are_taken_from_their_key_or_the_content() -> None:
    content = "<think>\nhm\n</think>\nHello"
    assert thoughts_and_words({"content": "", "reasoning_content": " so "}) == ("so", "")
    assert thoughts_and_words({"content": content}) == ("hm", "Hello")
    assert thoughts_and_words({"content": "Hello"}) == ("", "Hello")
