"""Columns are named or found by their usual names; a row that does not fit is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from chats import trained_texts
from tiny_language import conversation, save_rows

from trainer import ConfigError
from trainer.language import CausalLM


@pytest.mark.parametrize(
    ("settings", "rows", "message"),
    [
        (
            {"text_column": "txt"},
            [{"text": "a"}],
            r"text_column: 'txt': is a NoneType in .* row 1, which has text",
        ),
        ({}, [{"text": 3}], r"text_column: 'text': is a int in .* row 1"),
        (
            {"prompt_column": "q"},
            [{"q": "a", "a": "b"}],
            r"completion_column: 'None': is a NoneType in .* row 1, which has q, a",
        ),
        (
            {"messages_column": "text"},
            [{"text": "hello"}],
            r"messages_column: 'text': is a str in .* row 1, which has text",
        ),
    ],
)
def test_columns_and_templates_that_do_not_fit_are_refused(
    settings: dict[str, Any],
    rows: list[Any],
    message: str,
    task: Callable[..., CausalLM],
) -> None:
    with pytest.raises(ConfigError, match=message):
        task(rows=rows, **settings).build_data()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (conversation("Hi", "Good day"), "data: columns messages"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "Hi"},
                    {"from": "gpt", "value": "Good day"},
                ]
            },
            "data: columns conversations",
        ),
        ({"prompt": "Hi", "completion": " Good day"}, "data: columns prompt, completion"),
        (
            {"instruction": "Hi", "input": "", "output": "Good day"},
            "data: columns instruction, output",
        ),
        ({"text": "Good day", "messages": 3}, ""),
    ],
)
def test_columns_are_found_by_their_usual_names_with_a_notice(
    row: dict[str, Any], said: str, task: Callable[..., CausalLM]
) -> None:
    causal = task(rows=[row], packing="none")
    [found] = trained_texts(causal)
    assert found.strip().startswith("ood day" if "text" in row else "Good day")
    assert any(said in line for line in causal.notices()) if said else causal.notices() == []


def test_each_source_has_its_own_columns(
    task: Callable[..., CausalLM], chats: str, tmp_path: Path
) -> None:
    """The rows are those of the sources alone, and the conversations decide the end of a text."""
    texts = str(save_rows(tmp_path / "texts.jsonl", [{"text": "Some words."}]))
    alpaca = str(save_rows(tmp_path / "b.jsonl", [{"instruction": "Add", "output": "Done"}]))
    alone = [trained_texts(task(data=name, packing="none")) for name in (texts, chats, alpaca)]
    mixed = task(data=[texts, chats, alpaca], packing="none")
    assert trained_texts(mixed) == [text for part in alone for text in part]
    assert mixed.ends == [mixed.load_tokenizer().convert_tokens_to_ids("<|im_end|>")]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        {"prompt": "a", "completion": "b", "label": False},
    ],
)
def test_preferences_are_refused_unless_the_columns_are_named(
    row: dict[str, Any], task: Callable[..., CausalLM]
) -> None:
    with pytest.raises(
        ConfigError, match=r"data: 'prompt, .* are preferences, and CausalLM learns"
    ):
        task(rows=[row]).build_data()
    named = {"prompt_column": "prompt", "completion_column": list(row)[1]}
    assert len(task(rows=[row], **named).build_data().train) == 1


def test_alpaca_is_written_as_its_data_are(task: Callable[..., CausalLM]) -> None:
    """The texts of https://github.com/tatsu-lab/stanford_alpaca."""
    row = {"instruction": "Add", "input": "1 and 2", "output": "3"}
    rows = [row, {**row, "input": ""}]
    causal = task(rows=rows, template="alpaca", packing="none", sequence_length=512)
    tokenizer = causal.load_tokenizer()
    with_input, without = (
        tokenizer.decode(item["input_ids"]) for item in causal.build_data().train
    )
    assert with_input.startswith(
        "Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n"
        "### Instruction:\nAdd\n\n### Input:\n1 and 2\n\n### Response:\n3<|end|>"
    )
    assert without.startswith(
        "Below is an instruction that describes a task. Write a response that appropriately "
        "completes the request.\n\n### Instruction:\nAdd\n\n### Response:\n3<|end|>"
    )
