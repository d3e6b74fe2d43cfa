"""What of a row is learnt: all of a text, a completion, what the assistant says; and what does not fit is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_language import MARKED, UNMARKED, conversation, save_rows, tokenizer

from trainer import ConfigError, DataError
from trainer.language import CausalLM
from trainer.language.packing import IGNORED

CHATS = [
    conversation("Hello", "Good day", "How are you?", "Fine → thanks"),
    {"messages": [{"role": "system", "content": "Be brief."}, *conversation("Why?", "Because.")["messages"]]},
]


def learnt(task: CausalLM) -> list[str]:
    """The text of each stretch of tokens that is to be predicted."""
    decoder, data, found = tokenizer(), task.build_data(), []
    for at in range(len(data.train)):
        stretch: list[int] = []
        for label in [*data.train[at]["labels"].tolist(), IGNORED]:
            if label != IGNORED:
                stretch.append(label)
            elif stretch:
                found.append(decoder.decode(stretch))
                stretch = []
    return found


def template_file(folder: Path, text: str) -> str:
    (folder / "chat.jinja").write_text(text)
    return str(folder / "chat.jinja")


@pytest.fixture
def chats(tmp_path: Path) -> str:
    return str(save_rows(tmp_path / "chats.jsonl", CHATS))


@pytest.mark.parametrize(("template", "end"), [(MARKED, ""), (UNMARKED, "\n")])
def test_of_a_conversation_the_assistants_words_are_learnt(
    template: str, end: str, chats: str, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    one = task(data=chats, messages_column="messages", template=template_file(tmp_path, template), packing="none")
    assert sorted(learnt(one)) == sorted(
        f"{text}<|im_end|>{end}" for text in ("Good day", "Fine → thanks", "Because.")
    ), "with the mark that ends it: the model learns to stop; without marks the template's line end as well"


def test_the_tokenizers_own_template_is_the_default(chats: str, task: Callable[..., CausalLM]) -> None:
    assert len(learnt(task(data=chats, messages_column="messages", packing="none"))) == 3


def test_of_a_prompt_and_its_completion_the_completion_is_learnt(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    rows = [{"q": "two and two?", "a": " four"}, {"q": "and more?", "a": ""}]
    data = str(save_rows(tmp_path / "a.jsonl", rows))
    one = task(data=data, prompt_column="q", completion_column="a", packing="none")
    assert sorted(learnt(one)) == [" four<|end|>", "<|end|>"]


def test_texts_end_with_the_end_of_a_text(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    one = task(data=str(tmp_path / "a.txt"))
    assert learnt(one) == ["ome text<|end|>"] or learnt(one)[0].endswith("<|end|>")
    ids = one.build_data().train[0]["input_ids"].tolist()
    assert tokenizer().decode(ids) == "some text", "the end is predicted, and is itself no input"


@pytest.mark.parametrize(
    ("settings", "rows", "message"),
    [
        ({"text_column": "txt"}, [{"text": "a"}], r"text_column: 'txt': no such column in .*:1; did you mean 'text'\?"),
        ({}, [{"text": 3}], r"text_column: 'text': must hold text, not a int, in .*:1"),
        ({"messages_column": "text"}, [{"text": "hello"}], r"messages_column: '.*:1': must hold a list of \{role"),
        (
            {"messages_column": "messages", "template": "/no/such.jinja"},
            [conversation("a", "b")],
            r"template: '/no/such.jinja': cannot be read: No such file",
        ),
    ],
)
def test_columns_and_templates_that_do_not_fit_are_named(
    settings: dict[str, Any], rows: list[Any], message: str, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    data = str(save_rows(tmp_path / "a.jsonl", rows))
    with pytest.raises(ConfigError, match=message):
        task(data=data, **settings).build_data()


def test_a_template_that_raises_is_named_with_the_conversation(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    for text in (MARKED, UNMARKED):
        strict = "{{ raise_exception('no system here') if messages[0].role == 'system' }}" + text
        data = str(save_rows(tmp_path / "a.jsonl", CHATS))
        one = task(data=data, messages_column="messages", template=template_file(tmp_path, strict))
        with pytest.raises(ConfigError, match=r"a.jsonl:2': the chat template refuses this conversation: no system"):
            one.build_data()


def test_plain_text_has_no_other_columns(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    with pytest.raises(ConfigError, match=r"messages_column: 'messages': .*a.txt is plain text, without columns"):
        task(data=str(tmp_path / "a.txt"), messages_column="messages").build_data()


@pytest.mark.parametrize(
    ("rows", "message"), [([], "no rows"), ([{"text": ""}, {"text": None}], "2 rows without a token to learn")]
)
def test_an_empty_corpus_is_refused(
    rows: list[Any], message: str, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    data = str(save_rows(tmp_path / "a.jsonl", rows))
    with pytest.raises(DataError, match=f"task_settings.data: .*a.jsonl: nothing to learn from: {message}"):
        task(data=data).build_data()


def test_rows_without_anything_to_learn_are_counted(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    data = str(save_rows(tmp_path / "a.jsonl", [*CHATS, {"messages": CHATS[0]["messages"][:1]}]))
    rows = task(data=data, messages_column="messages").build_data().train
    assert (rows.fill.documents, rows.fill.left_out) == (2, 1)
