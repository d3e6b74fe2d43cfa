"""Of conversations exactly what the assistant says is trained on, with any chat template."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chats import (
    ANSWERS_IN_TURN,
    BEGINS_THOUGHTS,
    CALL,
    CALLING,
    DROPS_THOUGHTS,
    ENDS_TEXT,
    ENDS_TURNS,
    FILTERED,
    PARTS,
    THOUGHTFUL,
    encoder,
    trained_spans,
    trained_texts,
)
from tiny_language import MARKED, UNMARKED, conversation, save_rows

from trainer import ConfigError
from trainer.language import CausalLM
from trainer.language.templates import ALPACA, CHATML


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
def test_what_the_assistant_says_is_trained_on_without_the_generation_prompt(
    template: str, turns: list[str] | None
) -> None:
    if (
        turns is None
    ):  # it never asks, so it is the assistant's to say that it speaks; and it always ends the text
        turns = ["assistant: Good", "assistant: Fine<|end|>"]
    assert trained_spans(template, conversation("Hi", "Good", "And you?", "Fine")) == turns


def test_a_template_leaves_out_thoughts_but_of_a_turn_that_ends_its_row() -> None:
    first = "<think>\nhm\n</think>\n\nHello<|im_end|>\n"
    last = "<think>\nso\n</think>\n\nBye<|im_end|>\n"
    assert trained_spans(DROPS_THOUGHTS, THOUGHTFUL) == ["Hello<|im_end|>\n", last]

    one, answer, *others = THOUGHTFUL["messages"]
    assert trained_spans(DROPS_THOUGHTS, {"messages": [one, answer]}) == [first]
    row = {"messages": [one, {**answer, "weight": 0}, *others]}
    assert trained_spans(DROPS_THOUGHTS, row) == [last]


def test_turns_whose_thoughts_a_template_leaves_out_are_counted() -> None:
    told = encoder(DROPS_THOUGHTS)
    list(told.encode([("row", THOUGHTFUL)]))
    assert told.writer is not None
    assert told.writer.without_thoughts == 1
    plain = encoder(CHATML)
    list(plain.encode([("row", conversation("a", "b", "c", "d"))]))
    assert plain.writer is not None and plain.writer.without_thoughts == 0


@pytest.mark.parametrize(
    "said", ["Hello", " Hello", "  Hello", "\nHello", "\n\nHello", "\tHello", "Hello \n\n", ""]
)
def test_a_turn_may_begin_and_end_with_any_white_space(said: str) -> None:
    [found] = trained_spans(CHATML, conversation("hi", said))
    assert found.lstrip("\n") == f"{said}<|im_end|>\n".lstrip("\n"), (
        "a token over the border is the assistant's"
    )


def test_tokens_across_the_border_of_a_span_are_targets() -> None:
    run_on = "{% for m in messages %}{{ m.content }}{% endfor %}"
    [found] = trained_spans(run_on, conversation("in t", "he other"))
    assert found.endswith("he other") and len(found) > len("he other"), "'the' is one token"


def test_calls_of_tools_are_trained_on_and_their_answers_are_not() -> None:
    """Also where the template looks a call up from the answer, and wants its arguments as a
    mapping.
    """
    assert trained_spans(ENDS_TURNS, {"messages": CALLING}) == [
        ' to=get_time{"zone": "CET"}<|im_end|>',
        "|Noon.<|end|>",
    ]
    assert trained_spans(ANSWERS_IN_TURN, {"messages": CALLING}) == [
        'get_time{"zone": "CET"}',
        "<|im_end|>",
        "Noon.<|im_end|>",
    ]


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
            "'row': has images or other media; only text is supported",
        ),
        (
            CHATML,
            {"messages": IMAGE},
            "row message 1': must be {role: ..., content: ...}, content text or a list of parts",
        ),
        (CHATML, {"messages": HALF}, "row message 3': must be {role: ..., content: ...}"),
        (
            CHATML,
            {"messages": [{"role": "user"}]},
            "row message 1': must be {role: ..., content: ...}",
        ),
        (CHATML, {"messages": ["hi"]}, "row message 1': must be {role: ..., content: ...}"),
        (
            CHATML,
            {"messages": [{"text": "hi"}]},
            "row message 1': must be {role: ..., content: ...}",
        ),
        (
            CHATML,
            {"messages": CALLING},
            "row message 2': the template leaves out words of the assistant",
        ),
        (
            CHATML,
            {**conversation("a", "b"), "tools": [CALL]},
            "'row': the template leaves the row's tools out",
        ),
        (
            CHATML,
            {**conversation("a", "b"), "tools": "["},
            "tools: must be a list, or the JSON text of a list",
        ),
        (
            ENDS_TURNS.replace("{%- for other", "{%- if false %}{%- for other")
            .replace("{{- ':' + m.content + '<|im_end|>' }}", "{%- endif %}")
            .replace(
                "arguments | tojson }}", "arguments | tojson + messages[loop.index].content }}"
            ),
            {"messages": CALLING},
            "row message 3': the template leaves out words of the tool",
        ),
        (
            FILTERED,
            conversation("a", "b"),
            "row message 2': the template leaves out words of the assistant, or does not show",
        ),
        (
            CHATML.replace("+ message.content", ""),
            conversation("why", ""),
            "row message 1': the template leaves out words of the user",
        ),
        (
            UNMARKED.replace("{{ m.content }}<|im_end|>{% else %}", "<|im_end|>{% else %}"),
            conversation("a", "words"),
            "row message 2': the template leaves out words of the assistant",
        ),
        (
            MARKED.replace("{% generation %}{{ m.content }}", "{% generation %}"),
            conversation("a", "words"),
            "row message 2': the template leaves out words of the assistant",
        ),
        (
            "{{ raise_exception('no such talk') }}",
            conversation("a", "b"),
            "template: 'row': the template refuses this conversation: no such talk",
        ),
    ],
)
def test_what_a_template_cannot_write_is_refused(
    template: str, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        trained_spans(template, row)
    assert message in str(caught.value)


def test_settings_reach_the_template(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    data = str(save_rows(tmp_path / "a.jsonl", [conversation("a", "one", "c", "two")]))
    template = UNMARKED.replace("<|im_end|>", "{{ ending }}")
    keys = {
        "data": data,
        "template": template,
        "packing": "none",
        "chat_template_kwargs": {"ending": "!"},
    }
    assert trained_texts(task(**keys)) == ["one!\n", "two!\n"]
    assert len(task(**keys).build_data().train) == 1
