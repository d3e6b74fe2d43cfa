"""Of conversations exactly what the assistant says is learnt, whatever the shape of the chat
template.

The templates have the shapes of those that models come with: what each does is said beside it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from tiny_language import MARKED, UNMARKED, conversation, tokenizer

from trainer import ConfigError
from trainer.language.columns import Columns
from trainer.language.templates import ALPACA, CHATML, ChatTemplate
from trainer.language.tokens import Encoder
from trainer.language.turn_end import notice_of_turn_end, turn_ends

# Thoughts of earlier turns are dropped; the last one always has some, if empty (Qwen3).
DROPS_THOUGHTS = """{%- for m in messages %}
    {%- set thought, words = '', m.content %}
    {%- if m.role == 'assistant' and '</think>' in m.content %}
        {%- set thought = m.content.split('</think>')[0].replace('<think>', '').strip() %}
        {%- set words = m.content.split('</think>')[-1].strip() %}
    {%- endif %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' and loop.last %}{{- '<think>\\n' + thought + '\\n</think>\\n\\n' }}{%- endif %}
    {{- words + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
# The beginning of a thought is given at generation (Qwen3.5, DeepSeek-R1).
BEGINS_THOUGHTS = DROPS_THOUGHTS.replace(
    "'<|im_start|>assistant\\n' }}", "'<|im_start|>assistant\\n<think>\\n' }}"
)
# The whole text has an end of its own, unless the assistant is asked to speak (Phi-3).
ENDS_TEXT = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% else %}{{ eos_token }}{% endif %}"
)
# A turn ends otherwise once another follows, and a call of a tool is looked up in a loop in the
# loop (gpt-oss).
ENDS_TURNS = """{%- for m in messages %}
    {%- if m.role == 'tool' %}
        {%- for other in messages %}{%- if other.tool_calls %}{{- other.tool_calls[0].function.name }}{%- endif %}
        {%- endfor %}{{- ':' + m.content + '<|im_end|>' }}
    {%- elif m.tool_calls %}
        {{- '<|im_start|>assistant to=' + m.tool_calls[0].function.name + m.tool_calls[0].function.arguments | tojson }}
        {{- '<|im_end|>' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '|' + m.content + ('<|end|>' if loop.last else '<|im_end|>') }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant' }}{%- endif %}"""
# What tools answer is written into the turn that called them, by a loop over numbers (Gemma 4).
ANSWERS_IN_TURN = """{%- for m in messages %}{%- if m.role != 'tool' %}
    {%- set before = messages[loop.index0 - 1] %}
    {{- '<|im_start|>' + m.role + '|' + m.content }}
    {%- if m.tool_calls %}{{- m.tool_calls[0].function.name + m.tool_calls[0].function.arguments | tojson }}
        {%- for k in range(loop.index0 + 1, messages | length) %}{%- set follow = messages[k] %}
            {%- if follow.role == 'tool' %}{{- '[' + follow.content + ']' }}{%- endif %}
        {%- endfor %}
    {%- endif %}{{- '<|im_end|>' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant|' }}{%- endif %}"""
# No mark ends a turn (GLM-4).
ENDLESS = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}"
# Content is a list of parts, and text is written as nothing (SmolVLM).
PARTS = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + ':' }}"
    "{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}{% endfor %}"
    "{{ '<|im_end|>' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant:' }}{% endif %}"
)
# What the messages wrote goes through a filter.
FILTERED = "{% set all %}" + CHATML + "{% endset %}{{ all }}{{ all | length }}"
THOUGHTFUL = conversation(
    "Hi", "<think>\nhm\n</think>\nHello", "And?", "<think>\nso\n</think>\nBye"
)
CALL = {"type": "function", "function": {"name": "get_time", "arguments": '{"zone": "CET"}'}}
CALLING = [
    {"role": "user", "content": "Time?"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "name": "get_time", "content": "noon"},
    {"role": "assistant", "content": "Noon."},
]


def encoder(template: str, **columns: Any) -> Encoder:
    return Encoder(
        tokenizer(),
        Columns(**{"messages": "messages", **columns}),
        ChatTemplate(text=template, origin="test"),
    )


def learnt(template: str, row: dict[str, Any], **columns: Any) -> list[str]:
    """The text of each stretch of tokens that is learnt; a ConfigError is raised."""
    decoder, found = tokenizer(), []
    for one in encoder(template, **columns).encode([("row", row)]):
        if isinstance(one, ConfigError):
            raise one
        stretch: list[int] = []
        for token, flag in [*zip(*one, strict=True), (0, 0)]:
            if flag:
                stretch.append(token)
            elif stretch:
                found.append(decoder.decode(stretch))
                stretch = []
    return found


@pytest.mark.parametrize(
    ("template", "turns"),
    [
        (MARKED, ["Good<|im_end|>", "Fine<|im_end|>"]),
        (UNMARKED, ["Good<|im_end|>\n", "Fine<|im_end|>\n"]),
        (CHATML, ["Good<|im_end|>\n", "Fine<|im_end|>\n"]),
        (ALPACA, ["Good<|end|>\n\n", "Fine<|end|>\n\n"]),
        (DROPS_THOUGHTS, ["Good<|im_end|>\n", "<think>\n\n</think>\n\nFine<|im_end|>\n"]),
        (BEGINS_THOUGHTS, ["Good<|im_end|>\n", "\n</think>\n\nFine<|im_end|>\n"]),
        (ENDS_TEXT, ["Good<|im_end|>\n", "Fine<|im_end|>\n<|end|>"]),
        (ENDS_TURNS, ["|Good<|im_end|>", "|Fine<|end|>"]),
        (PARTS, ["Good<|im_end|>", "Fine<|im_end|>"]),
        ("{% for m in messages %}{{ m.role + ': ' + m.content }}{% endfor %}{{ eos_token }}", None),
    ],
)
def test_what_the_assistant_says_is_learnt_and_what_makes_it_speak_is_not(
    template: str, turns: list[str] | None
) -> None:
    if (
        turns is None
    ):  # it never asks, so it is the assistant's to say that it speaks; and it always ends the text
        turns = ["assistant: Good", "assistant: Fine<|end|>"]
    assert learnt(template, conversation("Hi", "Good", "And you?", "Fine")) == turns


def test_a_conversation_is_learnt_as_it_stands_at_its_end_or_each_turn_as_it_is_said() -> None:
    assert learnt(DROPS_THOUGHTS, THOUGHTFUL) == [
        "Hello<|im_end|>\n",
        "<think>\nso\n</think>\n\nBye<|im_end|>\n",
    ]
    assert learnt(DROPS_THOUGHTS, THOUGHTFUL, each_turn=True) == [
        "<think>\nhm\n</think>\n\nHello<|im_end|>\n",
        "<think>\nso\n</think>\n\nBye<|im_end|>\n",
    ]


def test_thoughts_that_are_left_out_and_turns_that_are_rewritten_are_told() -> None:
    told = encoder(DROPS_THOUGHTS)
    list(told.encode([("row", THOUGHTFUL)]))
    assert told.writer is not None
    rewritten, dropped = told.writer.notices
    assert "turns: each trains on each turn" in rewritten
    assert "leaves out the thoughts of 1 of 2 turns" in dropped
    plain = encoder(CHATML)
    list(plain.encode([("row", conversation("a", "b", "c", "d"))]))
    assert plain.writer is not None and plain.writer.notices == []


@pytest.mark.parametrize(
    "said", ["Hello", " Hello", "  Hello", "\nHello", "\n\nHello", "\tHello", "Hello \n\n", ""]
)
def test_a_turn_may_begin_and_end_with_any_white_space(said: str) -> None:
    [found] = learnt(CHATML, conversation("hi", said))
    assert found.lstrip("\n") == f"{said}<|im_end|>\n".lstrip("\n"), (
        "a token over the border is the assistant's"
    )


def test_tokens_over_a_border_are_learnt() -> None:
    run_on = "{% for m in messages %}{{ m.content }}{% endfor %}"
    [found] = learnt(run_on, conversation("in t", "he other"))
    assert found.endswith("he other") and len(found) > len("he other"), "'the' is one token"


def test_calls_of_tools_are_learnt_and_their_answers_are_not() -> None:
    """Also where the template looks a call up from the answer, and wants its arguments as a
    mapping.
    """
    assert learnt(ENDS_TURNS, {"messages": CALLING}) == [
        ' to=get_time{"zone": "CET"}<|im_end|>',
        "|Noon.<|end|>",
    ]
    assert learnt(ANSWERS_IN_TURN, {"messages": CALLING}) == [
        'get_time{"zone": "CET"}',
        "<|im_end|>",
        "Noon.<|im_end|>",
    ]


def test_tools_and_settings_of_a_row_reach_the_template() -> None:
    names = "{% for t in tools %}{{ t.function.name }}{% endfor %}{{ mood }}"
    row = {
        **conversation("Hi", "Good"),
        "tools": json.dumps([CALL]),
        "chat_template_kwargs": {"mood": "glad"},
    }
    [(ids, _)] = encoder(names + CHATML, settings={"mood": "sad"}).encode([("row", row)])
    assert tokenizer().decode(ids).startswith("get_timeglad<|im_start|>user")
    row = {**conversation("Hi", "Good"), "tools": []}
    [(ids, _)] = encoder("{{ mood }}" + CHATML, settings={"mood": "sad"}).encode([("row", row)])
    assert tokenizer().decode(ids).startswith("sad<|im_start|>user")


def test_messages_of_weight_0_and_those_of_a_prompt_are_not_learnt() -> None:
    row = conversation("a", "first", "c", "second")
    row["messages"][1]["weight"] = 0
    assert learnt(CHATML, row) == ["second<|im_end|>\n"]
    assert learnt(MARKED, row) == ["second<|im_end|>"]
    messages = conversation("a", "first", "c", "second")["messages"]
    pair = {"prompt": messages[:3], "completion": messages[3:]}
    assert learnt(CHATML, pair, messages=None, prompt="prompt", completion="completion") == [
        "second<|im_end|>\n"
    ]


@pytest.mark.parametrize(
    "row",
    [
        {"messages": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Good"}]},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, {"role": "assistant", "content": [{"type": "text", "text": "Go"}, {"type": "text", "text": "od"}]}]},
        {"system": "Be brief.", "messages": conversation("Hi", "Good")["messages"]},
    ],
)  # fmt: skip
def test_other_forms_of_messages_are_read(row: dict[str, Any]) -> None:
    assert learnt(CHATML, row) == ["Good<|im_end|>\n"]


def test_rows_of_instructions_are_conversations() -> None:
    row = {"instruction": "Add.", "input": "1, 2", "output": "3"}
    columns = Columns().found_in(row)
    assert columns.instruction and columns.are_chats(row)
    found = Encoder(tokenizer(), columns, ChatTemplate(text=ALPACA, origin="alpaca"))
    [(ids, flags)] = found.encode([("row", row)])
    assert (
        tokenizer().decode(ids) == "### Instruction:\nAdd.\n\n1, 2\n\n### Response:\n3<|end|>\n\n"
    )
    assert (
        tokenizer().decode([i for i, flag in zip(ids, flags, strict=True) if flag])
        == "3<|end|>\n\n"
    )


IMAGE = [
    {"role": "user", "content": [{"type": "image", "image": "a.png"}]},
    {"role": "assistant", "content": "x"},
]
HALF = [*conversation("a", "b")["messages"], {"role": "assistant", "content": "c", "weight": 0.5}]


@pytest.mark.parametrize(
    ("template", "row", "message"),
    [
        (
            CHATML,
            {**conversation("a", "b"), "images": ["a.png"]},
            "'row': has images; only text is supported",
        ),
        (CHATML, {"messages": IMAGE}, "row message 1': holds 'image'; only text is supported"),
        (CHATML, {"messages": HALF}, "row message 3': weight 0.5: a message's weight is 0"),
        (CHATML, {"messages": [{"role": "user"}]}, "row message 1': has no content"),
        (CHATML, {"messages": ["hi"]}, "row message 1': must be {role: ..., content: ...}"),
        (CHATML, {"messages": [{"text": "hi"}]}, "it has text"),
        (CHATML, {"messages": CALLING}, "row message 2': the template leaves its tool calls out"),
        (
            CHATML,
            {**conversation("a", "b"), "tools": [CALL]},
            "'row': the template leaves the row's tools out",
        ),
        (CHATML, {**conversation("a", "b"), "tools": "["}, "tools: is no JSON"),
        (
            ENDS_TURNS.replace("{%- for other", "{%- if false %}{%- for other")
            .replace("{{- ':' + m.content + '<|im_end|>' }}", "{%- endif %}")
            .replace(
                "arguments | tojson }}", "arguments | tojson + messages[loop.index].content }}"
            ),
            {"messages": CALLING},
            "row message 3': the template writes the answer of a tool into the assistant's turn",
        ),
        (
            FILTERED,
            conversation("a", "b"),
            "does not show whose text is whose: put {% generation %}",
        ),
        (
            CHATML.replace("+ message.content", ""),
            conversation("why", ""),
            "does not write what the user says",
        ),
        (
            UNMARKED.replace("{{ m.content }}<|im_end|>{% else %}", "<|im_end|>{% else %}"),
            conversation("a", "words"),
            "row message 2': the template does not write what the assistant says",
        ),
        (
            MARKED.replace("{% generation %}{{ m.content }}", "{% generation %}"),
            conversation("a", "words"),
            "row message 2': the template does not write what the assistant says",
        ),
        (
            "{{ raise_exception('no such talk') }}",
            conversation("a", "b"),
            "refuses this conversation: no such talk",
        ),
    ],
)
def test_what_a_template_cannot_write_is_refused(
    template: str, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        learnt(template, row)
    assert message in str(caught.value)


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
