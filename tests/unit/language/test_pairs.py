"""Rows of preferences in all their forms, and the rows that are refused, each in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chats import DROPS_THOUGHTS
from preferences import TEMPLATE, preference
from tiny_language import conversation, save_rows, tokenizer

from trainer import ConfigError
from trainer.language import DPO
from trainer.language.tokens import TARGET, words_of

Q = {"role": "user", "content": "Why?"}
WHO = {"role": "user", "content": "Who?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("Because.", "No."))
MARK = "<|im_start|>user|Why?<|im_end|><|im_start|>assistant|"


@pytest.fixture
def task(llama: Path, tmp_path: Path) -> Callable[..., DPO]:
    """A task of the given rows."""

    def make(*rows: dict[str, Any], **settings: Any) -> DPO:
        defaults = {
            "model": str(llama),
            "data": str(save_rows(tmp_path / "rows.jsonl", list(rows))),
            "cache_dir": str(tmp_path / "cache"),
            "sequence_length": 64,
        }
        return DPO(**{**defaults, **settings})

    return make


def sides(dpo: DPO, number: int = 0) -> list[tuple[str, str]]:
    """The text before the answer, and the answer, of both sides of a pair."""
    found = []
    for tokens in dpo.build_data().train[number][0]:
        ids, targets = words_of(tokens), tokens >= TARGET
        start = int(targets.argmax())
        assert targets[start:].all(), "the answer is the end"
        found.append((tokenizer().decode(ids[:start]), tokenizer().decode(ids[start:])))
    return found


CHATS: dict[str, dict[str, Any]] = {
    "messages": preference("Why?", "Because.", "No."),
    "whole conversations": {"chosen": [Q, GOOD], "rejected": [Q, BAD]},
    "a prompt as text": {"prompt": "Why?", "chosen": [GOOD], "rejected": [BAD]},
    "ShareGPT": {
        "conversations": [{"from": "human", "value": "Why?"}],
        "chosen": {"from": "gpt", "value": "Because."},
        "rejected": {"from": "gpt", "value": "No."},
    },
    "texts": {"prompt": "Why?", "chosen": "Because.", "rejected": "No."},
    "Orca": {"question": "Why?", "chosen": "Because.", "rejected": "No."},
}


@pytest.mark.parametrize("case", CHATS)
def test_a_prompt_and_two_answers_in_every_form(case: str, task: Callable[..., DPO]) -> None:
    dpo = task(CHATS[case], template=TEMPLATE)
    assert sides(dpo) == [(MARK, "Because.<|im_end|>"), (MARK, "No.<|im_end|>")]


def test_system_tools_and_several_turns(task: Callable[..., DPO]) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": {}}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    answer = {"role": "tool", "content": "noon"}
    template = "{% for tool in tools %}[{{ tool.name }}]{% endfor %}" + TEMPLATE.replace(
        "{{ m.content }}",
        "{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}(){% endfor %}",
    )
    row = {
        "system": "Brief.",
        "tools": [{"name": "f"}],
        "chosen": [Q, calling, answer, GOOD],
        "rejected": [Q, calling, answer, BAD],
    }
    direct = {"prompt": [Q], "chosen": [calling], "rejected": [BAD], "tools": '[{"name": "f"}]'}
    both = task(row, direct, template=template)
    before = "[f]<|im_start|>system|Brief.<|im_end|>" + MARK
    before += "f()<|im_end|><|im_start|>tool|noon<|im_end|><|im_start|>assistant|"
    assert sides(both) == [(before, "Because.<|im_end|>"), (before, "No.<|im_end|>")]
    assert [answer for _, answer in sides(both, 1)] == ["f()<|im_end|>", "No.<|im_end|>"]


TEXTS: dict[str, tuple[dict[str, Any], str, str]] = {
    "a prompt": ({"prompt": "Why?", "chosen": " Yes", "rejected": " No"}, "Why?", " Yes"),
    "whole texts": (
        {"prompt": "Why?", "chosen": "Why? Yes", "rejected": "Why? No"},
        "Why?",
        " Yes",
    ),
    "the same beginning": (
        {"chosen": "Human: hi\n\nAssistant: It is", "rejected": "Human: hi\n\nAssistant: I am"},
        "Human: hi\n\nAssistant:",
        " It is",
    ),
    "Alpaca": (
        {"instruction": "Add.", "input": "1, 2", "chosen": " 3", "rejected": " 4"},
        "Add.\n\n1, 2",
        " 3",
    ),
}


@pytest.mark.parametrize("case", TEXTS)
def test_texts_end_with_the_end_of_a_text(case: str, task: Callable[..., DPO]) -> None:
    row, prompt, answer = TEXTS[case]
    [chosen, rejected] = sides(task(row))
    assert chosen == (prompt, f"{answer}<|end|>")
    assert rejected[0] == prompt and rejected[1].endswith("<|end|>")


def test_a_prompt_that_begins_an_answer_by_chance_is_added(task: Callable[..., DPO]) -> None:
    rows = [
        {"prompt": "Hi", "chosen": "Hi, how are you?", "rejected": "Hi."},
        {"prompt": "Hi", "chosen": "Hi there", "rejected": "Go"},
        {"prompt": "Why?", "chosen": " Yes", "rejected": " No"},
    ]
    dpo = task(*rows)
    assert [a + b for a, b in sides(dpo)] == ["HiHi, how are you?<|end|>", "HiHi.<|end|>"]
    assert sides(dpo, 1)[0] == ("Hi", "Hi there<|end|>")
    assert not any("repeat the prompt" in note for note in dpo.notices())


def test_a_source_repeats_the_prompt_in_all_rows(task: Callable[..., DPO]) -> None:
    row = {"prompt": "Why?", "chosen": "Why? Yes", "rejected": "Why? No"}
    dpo = task(row)
    assert sides(dpo)[0] == ("Why?", " Yes<|end|>")
    assert "data: chosen and rejected repeat the prompt, which is not added again" in dpo.notices()
    bad = task(*[row] * 512, {**row, "chosen": "Yes"})
    with pytest.raises(ConfigError, match=rf"row 513'?: {BEGIN}"):
        bad.build_data()


def test_a_template_that_drops_earlier_thoughts_shows_the_last(task: Callable[..., DPO]) -> None:
    rows = [
        conversation("Hi", "<think>hm</think>Hello", "And?", f"<think>so</think>{word}")["messages"]
        for word in ("Bye", "Stay")
    ]
    dpo = task({"chosen": rows[0], "rejected": rows[1]}, template=DROPS_THOUGHTS)
    [(prompt, chosen), _] = sides(dpo)
    assert "hm" not in prompt and "so" in chosen and chosen.endswith("Bye<|im_end|>\n")


def test_long_sides_are_cut_and_the_batch_is_padded(task: Callable[..., DPO]) -> None:
    rows = [preference("Why?", "Because. " * 40, "No."), preference("Who?", "I", "You")]
    dpo = task(*rows, template=TEMPLATE, evaluation=0.5)
    data = dpo.build_data()
    [first], [second] = data.train, data.evaluation
    batch = data.collate([first, second])
    assert batch["input_ids"].shape == batch["labels"].shape == (4, 64)
    assert (batch["labels"][0] >= 0).sum() > 30 and (batch["labels"][1:, 40:] == -100).all()
    assert batch["pair"].tolist() == [0, 1] and dpo.weight(batch) == 2


EMPTY = "the side has no answer of its own; the answer is empty, or the same on both sides"
BEGIN = "the prompt is not the beginning of both sides"
SHORT = "sequence_length allows 65 tokens: both answers must begin and differ within these tokens"
TALK = preference("Why?", "Yes", "No.")
WHOLE = {"chosen": [Q, GOOD], "rejected": [Q, BAD]}
TEXT = {"prompt": "Why?", "chosen": "Yes", "rejected": "No"}
# A good row of the same kind, a bad row, and the message.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "an empty side": (TALK, preference("Why?", " ", "No."), rf"chosen_column.*{EMPTY}"),
    "equal sides": (TALK, preference("Why?", "No.", "No."), rf"chosen_column.*{EMPTY}"),
    "equal up to the length": (TALK, preference("Why?", "No. " * 60, "No. " * 61), SHORT),
    "a long prompt": (TALK, preference("Why? " * 90, "Yes", "No."), SHORT),
    "conversations without a beginning": (
        WHOLE,
        {"chosen": [Q, GOOD], "rejected": [WHO, BAD]},
        BEGIN,
    ),
    "the prompt of another row": (TALK, {"prompt": "Who?", **WHOLE}, BEGIN),
    "texts without a beginning": (
        {"chosen": "Why? Yes", "rejected": "Why? No"},
        {"chosen": "Yes", "rejected": "No"},
        BEGIN,
    ),
    "a number": (TEXT, {**TEXT, "rejected": 3}, "is a int in"),
    "a system beside texts": (
        TEXT,
        {**TEXT, "system": "Brief."},
        "a row with system or tools is a conversation; set a template",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_rows_are_one_line_with_the_row_or_left_out(
    case: str, task: Callable[..., DPO]
) -> None:
    good, bad, message = REFUSED[case]
    with pytest.raises(ConfigError, match=message) as refused:
        task(good, bad).build_data()
    assert "rows.jsonl row 2" in str(refused.value)

    left = task(good, bad, bad_rows="leave_out")
    assert len(left.build_data().train) == 1
    assert any(note.startswith("1 bad rows are left out") for note in left.notices())


def test_rows_that_are_no_preferences_are_refused(task: Callable[..., DPO]) -> None:
    kto = {"prompt": "Why?", "completion": "Because.", "label": True}
    with pytest.raises(
        ConfigError, match=r"chosen_column: 'chosen': is a NoneType in .* row 1, which has"
    ):
        task(kto).build_data()


def test_columns_of_other_names(task: Callable[..., DPO]) -> None:
    names = {"prompt_column": "q", "chosen_column": "good", "rejected_column": "bad"}
    row = {"q": "Why?", "good": "Yes", "bad": "No"}
    assert sides(task(row, **names))[0] == ("Why?", "Yes<|end|>")
    bad = task(row, {**row, "bad": " "}, **names)
    with pytest.raises(ConfigError, match=rf"rejected_column: .*row 2'?: {EMPTY}"):
        bad.build_data()
