"""Of conversations exactly what the assistant says is trained on, with any chat template."""

from __future__ import annotations

from collections.abc import Callable
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
    THOUGHTFUL,
    encoder,
    trained_spans,
    trained_texts,
)
from tiny_language import MARKED, UNMARKED, conversation

from trainer import ConfigError
from trainer.language import CausalLM
from trainer.language.templates import CHATML


@pytest.mark.parametrize(
    ("template", "turns"),
    [
        (MARKED, ["Good<|im_end|>", "Fine<|im_end|>"]),
        (UNMARKED, ["Good<|im_end|>\n", "Fine<|im_end|>\n"]),
        (CHATML, ["Good<|im_end|>\n", "Fine<|im_end|>\n"]),
        (DROPS_THOUGHTS, ["Good<|im_end|>\n", "<think>\n\n</think>\n\nFine<|im_end|>\n"]),
        (BEGINS_THOUGHTS, ["Good<|im_end|>\n", "\n</think>\n\nFine<|im_end|>\n"]),
        (ENDS_TEXT, ["Good<|im_end|>\n", "Fine<|im_end|>\n<|end|>"]),
        (ENDS_TURNS, ["|Good<|im_end|>", "|Fine<|end|>"]),
        # It never asks, so it is the assistant's to say that it speaks, and always ends the text.
    ],
)
def test_what_the_assistant_says_is_trained_on_without_the_generation_prompt(
    template: str, turns: list[str]
) -> None:
    assert trained_spans(template, conversation("Hi", "Good", "And you?", "Fine")) == turns


def test_a_template_leaves_out_thoughts_but_of_a_turn_that_ends_its_row() -> None:
    first = "<think>\nhm\n</think>\n\nHello<|im_end|>\n"
    last = "<think>\nso\n</think>\n\nBye<|im_end|>\n"
    assert trained_spans(DROPS_THOUGHTS, THOUGHTFUL) == ["Hello<|im_end|>\n", last]

    one, answer, *others = THOUGHTFUL["messages"]
    assert trained_spans(DROPS_THOUGHTS, {"messages": [one, answer]}) == [first]
    row = {"messages": [one, {**answer, "weight": 0}, *others]}
    assert trained_spans(DROPS_THOUGHTS, row) == [last]


@pytest.mark.parametrize(("row", "count"), [(THOUGHTFUL, 1), (conversation("a", "b", "c", "d"), 0)])
def test_turns_whose_thoughts_a_template_leaves_out_are_counted(
    row: dict[str, Any], count: int
) -> None:
    told = encoder(DROPS_THOUGHTS)
    list(told.encode([("row", row)]))
    assert told.writer is not None and told.writer.without_thoughts == count


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


TALK = conversation("a", "words")
FORM = "message {}': must be {{role: ..., content: ...}}, content text or a list of parts"
LEAVES_OUT = "row message {}': the template leaves out words of the {}"
TOOL_IN_CALL = (
    ENDS_TURNS.replace("{%- for other", "{%- if false %}{%- for other")
    .replace("{{- ':' + m.content + '<|im_end|>' }}", "{%- endif %}")
    .replace("arguments | tojson }}", "arguments | tojson + messages[loop.index].content }}")
)
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (CHATML, {**TALK, "images": ["a.png"]}, "'row': has images or other media; only text is"),
    (CHATML, {"messages": IMAGE}, FORM.format(1)),
    (CHATML, {"messages": HALF}, FORM.format(3)),
    *[
        (CHATML, {"messages": [bad]}, FORM.format(1))
        for bad in ({"role": "user"}, "a", {"text": ""})
    ],
    (CHATML, {"messages": CALLING}, LEAVES_OUT.format(2, "assistant")),
    (CHATML, {**TALK, "tools": [CALL]}, "'row': the template leaves the row's tools out"),
    (CHATML, {**TALK, "tools": "["}, "tools: must be a list, or the JSON text of a list"),
    (TOOL_IN_CALL, {"messages": CALLING}, LEAVES_OUT.format(3, "tool")),
    (FILTERED, TALK, LEAVES_OUT.format(2, "assistant, or does not show")),
    (
        UNMARKED.replace("{{ m.content }}<|im_end|>{% else %}", "<|im_end|>{% else %}"),
        TALK,
        LEAVES_OUT.format(2, "assistant"),
    ),
    (
        "{{ raise_exception('no such talk') }}",
        TALK,
        "template: 'row': the template refuses this conversation: no such talk",
    ),
]


@pytest.mark.parametrize(("template", "row", "message"), REFUSED)
def test_what_a_template_cannot_write_is_refused(
    template: str, row: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        trained_spans(template, row)
    assert message in str(caught.value)


def test_settings_reach_the_template(task: Callable[..., CausalLM]) -> None:
    causal = task(
        rows=[conversation("a", "one", "c", "two")],
        template=UNMARKED.replace("<|im_end|>", "{{ ending }}"),
        packing="none",
        chat_template_kwargs={"ending": "!"},
    )
    assert trained_texts(causal) == ["one!\n", "two!\n"]
