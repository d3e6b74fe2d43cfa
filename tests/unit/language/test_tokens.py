"""What of a row is learnt: all of a text, a completion, what the assistant says; and what does not
fit is named.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_language import MARKED, UNMARKED, conversation, save_rows, tokenizer

from trainer import ConfigError, DataError
from trainer.language import CausalLM
from trainer.language.columns import Columns
from trainer.language.packing import IGNORED
from trainer.language.tokens import Encoder

CHATS = [
    conversation("Hello", "Good day", "How are you?", "Fine → thanks"),
    {
        "messages": [
            {"role": "system", "content": "Be brief."},
            *conversation("Why?", "Because.")["messages"],
        ]
    },
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
    one = task(
        data=chats,
        messages_column="messages",
        template=template_file(tmp_path, template),
        packing="none",
    )
    assert sorted(learnt(one)) == sorted(
        f"{text}<|im_end|>{end}" for text in ("Good day", "Fine → thanks", "Because.")
    ), (
        "with the mark that ends it: the model learns to stop; without marks the template's line end as well"
    )


def test_the_tokenizers_own_template_is_the_default(
    chats: str, task: Callable[..., CausalLM]
) -> None:
    assert len(learnt(task(data=chats, messages_column="messages", packing="none"))) == 3


def test_of_a_prompt_and_its_completion_the_completion_is_learnt(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
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
        (
            {"text_column": "txt"},
            [{"text": "a"}],
            r"text_column: 'txt': no such column in .*:1; did you mean 'text'\?",
        ),
        (
            {},
            [{"chosen": "a"}],
            r"no such column in .*; known: chosen; found without a key are messages or conversations",
        ),
        ({}, [{"text": 3}], r"text_column: 'text': must hold text, not a int, in .*:1"),
        (
            {"messages_column": "text"},
            [{"text": "hello"}],
            r"messages_column: '.*:1': must hold a list of \{role",
        ),
        (
            {"messages_column": "messages", "template": "/no/such.jinja"},
            [conversation("a", "b")],
            r"template: '/no/such.jinja': cannot be read: No such file",
        ),
    ],
)
def test_columns_and_templates_that_do_not_fit_are_named(
    settings: dict[str, Any],
    rows: list[Any],
    message: str,
    task: Callable[..., CausalLM],
    tmp_path: Path,
) -> None:
    data = str(save_rows(tmp_path / "a.jsonl", rows))
    with pytest.raises(ConfigError, match=message):
        task(data=data, **settings).build_data()


def test_a_template_that_raises_is_named_with_the_conversation(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    for text in (MARKED, UNMARKED):
        strict = "{{ raise_exception('no system here') if messages[0].role == 'system' }}" + text
        data = str(save_rows(tmp_path / "a.jsonl", CHATS))
        one = task(data=data, messages_column="messages", template=template_file(tmp_path, strict))
        with pytest.raises(
            ConfigError, match=r"a.jsonl:2': the chat template refuses this conversation: no system"
        ):
            one.build_data()


def test_plain_text_has_no_other_columns(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    with pytest.raises(
        ConfigError, match=r"messages_column: 'messages': .*a.txt is plain text, without columns"
    ):
        task(data=str(tmp_path / "a.txt"), messages_column="messages").build_data()


@pytest.mark.parametrize(
    ("rows", "message"),
    [([], "no rows"), ([{"text": ""}, {"text": None}], "2 rows without a token to train on")],
)
def test_an_empty_corpus_is_refused(
    rows: list[Any], message: str, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    data = str(save_rows(tmp_path / "a.jsonl", rows))
    with pytest.raises(
        DataError, match=f"task_settings.data: .*a.jsonl: nothing to train on: {message}"
    ):
        task(data=data).build_data()


def test_rows_without_anything_to_learn_are_counted(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    data = str(save_rows(tmp_path / "a.jsonl", [*CHATS, {"messages": CHATS[0]["messages"][:1]}]))
    rows = task(data=data, messages_column="messages").build_data().train
    assert (rows.fill.documents, rows.fill.left_out) == (2, 1)


def joined_words() -> Any:
    """A tokenizer as Llama-2's: a space is put before a text, and spaces are a sign of the words."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast

    letters = [
        "<unk>",
        "<s>",
        "</s>",
        "▁",
        *"abcdefghijklmnopqrstuvwxyz:\n",
        "▁y",
        "▁yo",
        "▁you",
        "yo",
        "you",
    ]
    merges = [("▁", "y"), ("▁y", "o"), ("▁yo", "u"), ("y", "o"), ("yo", "u")]
    inner = Tokenizer(
        models.BPE({word: at for at, word in enumerate(letters)}, merges, unk_token="<unk>")
    )
    inner.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    inner.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def pair(tokenizer: Any, prompt: str, completion: str) -> tuple[list[str], list[str]]:
    """All tokens of a prompt and its completion, and those that are learnt."""
    encoder = Encoder(tokenizer, Columns(prompt="p", completion="c"), None)
    [(ids, flags)] = encoder.encode([("row", {"p": prompt, "c": completion})])
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return tokens, [token for token, flag in zip(tokens, flags, strict=True) if flag]


def test_a_prompt_and_its_completion_are_one_text() -> None:
    own = joined_words()
    assert pair(own, "ask:\n", "you")[1] == ["you", "</s>"], "no space that nobody wrote"
    assert pair(own, "ask:", " you")[1] == ["▁you", "</s>"]
    assert pair(own, "ask: ", "you")[1] == ["▁you", "</s>"], "a token over the border is learnt"
    assert pair(own, "ask: y", "ou")[0] == ["<s>", "▁", "a", "s", "k", ":", "▁you", "</s>"]
    assert pair(own, "", "you")[1] == ["▁you", "</s>"]


def test_a_text_has_one_beginning_and_one_end() -> None:
    from tokenizers.processors import TemplateProcessing

    own = joined_words()
    assert pair(own, "ask:", " you</s>")[1] == ["▁you", "</s>"], "the row has the end already"
    encoder = Encoder(own, Columns(), None)
    for text in ("you", "<s>you", "you</s>", "<s>you</s>"):
        [(ids, flags)] = encoder.encode([("row", {"text": text})])
        tokens = own.convert_ids_to_tokens(ids)
        assert tokens.count("<s>") == tokens.count("</s>") == 1 and len(flags) == len(ids) == sum(
            flags
        ), text
    ends_itself = [("<s>", 1), ("</s>", 2)]
    own.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=ends_itself
    )
    assert pair(own, "ask:", " you")[0][-2:] == ["▁you", "</s>"]
    assert pair(own, "ask:", " you")[1] == ["▁you", "</s>"]


def test_tokens_of_rows_are_taken_as_they_are(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    ids = tokenizer()("some text")["input_ids"]
    half = [-100 if at < 3 else token for at, token in enumerate(ids)]
    data = save_rows(tmp_path / "a.jsonl", [{"input_ids": ids, "labels": half}, {"input_ids": ids}])
    one = task(data=str(data), packing="none")
    assert sorted(learnt(one)) == sorted([tokenizer().decode(ids[3:]), tokenizer().decode(ids[1:])])
    assert one.notices() == ["data: tokens in the column input_ids, labels where there are any"]
    for row, rule in (
        ({"input_ids": [999_999]}, "tokens from 0 to"),
        ({"input_ids": ids, "labels": ids[1:]}, "labels"),
    ):
        with pytest.raises(ConfigError, match=rule):
            task(data=str(save_rows(tmp_path / "b.jsonl", [row])), packing="none").build_data()


BAD = [conversation("a", "b"), {"messages": []}, conversation("c", "d"), {"messages": "x"}]


def test_bad_rows_are_counted_the_first_is_named_and_a_key_leaves_them_out(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    data = str(save_rows(tmp_path / "a.jsonl", BAD))
    rule = r"a.jsonl:2': must hold a list of .*; 2 of 4 rows cannot be trained on; bad_rows: leave_out continues without"
    with pytest.raises(ConfigError, match=rule):
        task(data=data).build_data()
    one = task(data=data, bad_rows="leave_out", packing="none")
    assert len(one.build_data().train) == 2
    assert any(
        "2 of 4 rows are left out (bad_rows: leave_out), the first: " in line
        for line in one.notices()
    )
    alone = str(save_rows(tmp_path / "b.jsonl", BAD[1:2]))
    with pytest.raises(ConfigError, match="must hold a list of"):
        task(data=alone, bad_rows="leave_out").build_data()


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (conversation("Hi", "Good day"), "conversations in the column messages"),
        (
            {
                "conversations": [
                    {"from": "human", "value": "Hi"},
                    {"from": "gpt", "value": "Good day"},
                ]
            },
            "conversations in",
        ),
        ({"prompt": "Hi", "completion": " Good day"}, "prompts and completions in"),
        ({"instruction": "Hi", "input": "", "output": "Good day"}, "instruction, input and output"),
        ({"text": "Good day", "messages": 3}, ""),
    ],
)
def test_columns_are_found_by_their_usual_names_and_told(
    row: dict[str, Any], said: str, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    one = task(data=str(save_rows(tmp_path / "a.jsonl", [row])), packing="none")
    [found] = learnt(one)
    assert found.strip().startswith("ood day" if "text" in row else "Good day")
    assert any(said in line for line in one.notices()) if said else one.notices() == []


def test_a_template_is_named_given_as_text_or_one_of_the_tokenizers(
    chats: str, task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    def ends(template: str | None, own: Any = MARKED) -> list[str]:
        one = task(data=chats, template=template, packing="none")
        one.load_tokenizer().chat_template = own
        return sorted(text[-6:] for text in learnt(one))

    named = {"default": UNMARKED, "tool_use": UNMARKED.replace("<|im_end|>", "<|tool|>")}
    assert (
        ends("chatml")
        == ends(UNMARKED)
        == ends(None, named)
        == ends(template_file(tmp_path, UNMARKED))
    )
    assert ends("tool_use", named) == ["tool|>\n"[-6:]] * 3
    with pytest.raises(ConfigError, match=r"cannot be read: No such file.*did you mean 'chatml'\?"):
        ends("chatlm")
    for own in (None, {"rag": UNMARKED}):
        with pytest.raises(ConfigError, match=r"no default chat template; give .*chatml, alpaca"):
            ends(None, own)


def test_settings_reach_the_template_and_turns_may_be_documents(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    data = str(save_rows(tmp_path / "a.jsonl", [conversation("a", "one", "c", "two")]))
    template = UNMARKED.replace("<|im_end|>", "{{ ending }}")
    keys = {
        "data": data,
        "template": template,
        "packing": "none",
        "chat_template_kwargs": {"ending": "!"},
    }
    assert learnt(task(**keys)) == ["one!\n", "two!\n"]
    assert len(task(**keys).build_data().train) == 1
    assert sorted(learnt(task(**keys, turns="each"))) == ["one!\n", "two!\n"]
    assert len(task(**keys, turns="each").build_data().train) == 2


def test_the_version_of_the_data_says_what_is_learnt(
    task: Callable[..., CausalLM], tmp_path: Path
) -> None:
    """The same for the same tokens, wherever they lie; another where two rows changed places: a
    resume sees it.
    """
    rows = [conversation("a", "b"), conversation("c", "d")]

    def version(*given: Any, name: str = "a.jsonl") -> str:
        data = task(data=str(save_rows(tmp_path / name, list(given))), packing="none").build_data()
        return str(data.version)

    first = version(*rows)
    assert first == version(*rows, name="b.jsonl") != version(*rows[::-1])
    assert first != version(rows[0], conversation("c", "e"))
