"""Texts, completions and bad rows as tokens: which are targets, and which end a text."""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any

import pytest
from chats import CHATS, trained_texts
from tiny_language import conversation, tokenizer

from trainer import ConfigError
from trainer.language import CausalLM
from trainer.language.columns import Columns
from trainer.language.tokens import TARGET, Encoder, words_of


def test_of_a_prompt_and_its_completion_the_completion_is_trained_on(
    task: Callable[..., CausalLM],
) -> None:
    rows = [{"q": "two and two?", "a": " four"}, {"q": "and more?", "a": ""}]
    causal = task(rows=rows, prompt_column="q", completion_column="a", packing="none")
    assert sorted(trained_texts(causal)) == [" four<|end|>", "<|end|>"]


def test_texts_end_with_the_end_of_a_text(task: Callable[..., CausalLM]) -> None:
    causal = task(rows=[{"text": "some text"}])
    assert trained_texts(causal)[0].endswith("<|end|>")
    ids = causal.build_data().train[0]["input_ids"].tolist()
    assert tokenizer().decode(ids) == "some text", "the end is predicted, and is itself no input"


def test_an_empty_corpus_is_refused(task: Callable[..., CausalLM]) -> None:
    with pytest.raises(ConfigError, match=r"data: .*a.jsonl'\]: no row has a token to train on"):
        task(rows=[{"text": ""}] * 2).build_data()


def test_rows_without_a_target_are_a_notice(task: Callable[..., CausalLM]) -> None:
    causal = task(rows=[*CHATS, {"messages": CHATS[0]["messages"][:1]}], packing="none")
    assert len(causal.build_data().train) == 2
    assert "1 documents without a token to train on are left out" in causal.notices()


def joined_words() -> Any:
    """A tokenizer as Llama-2's: a space is put before a text, and is a part of the words."""
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
    """All tokens of a prompt and its completion, and those that are targets."""
    encoder = Encoder(tokenizer, Columns(kind="prompt", names=("p", "c")))
    [coded] = encoder.encode([("row", {"p": prompt, "c": completion})])
    tokens = tokenizer.convert_ids_to_tokens(words_of(coded))
    return tokens, [*compress(tokens, coded & TARGET)]


def test_a_prompt_and_its_completion_are_one_text() -> None:
    own = joined_words()
    assert pair(own, "ask:\n", "you")[1] == ["you", "</s>"], "no space that nobody wrote"
    assert pair(own, "ask:", " you")[1] == ["▁you", "</s>"]
    assert pair(own, "ask: ", "you")[1] == ["▁you", "</s>"], "a token across the border is a target"
    assert pair(own, "ask: y", "ou")[0] == ["<s>", "▁", "a", "s", "k", ":", "▁you", "</s>"]
    assert pair(own, "", "you")[1] == ["▁you", "</s>"]


def test_a_text_has_one_beginning_and_one_end() -> None:
    from tokenizers.processors import TemplateProcessing

    own = joined_words()
    assert pair(own, "ask:", " you</s>")[1] == ["▁you", "</s>"], "the row has the end already"
    encoder = Encoder(own, Columns("text", ("text",)))
    for text in ("you", "<s>you", "you</s>", "<s>you</s>"):
        [coded] = encoder.encode([("row", {"text": text})])
        tokens = own.convert_ids_to_tokens(words_of(coded))
        assert tokens.count("<s>") == tokens.count("</s>") == 1 and (coded & TARGET).all(), text
    ends_itself = [("<s>", 1), ("</s>", 2)]
    own.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=ends_itself
    )
    assert pair(own, "ask:", " you")[0][-2:] == ["▁you", "</s>"]
    assert pair(own, "ask:", " you")[1] == ["▁you", "</s>"]


def test_rows_may_be_tokens(task: Callable[..., CausalLM]) -> None:
    """As the libraries of others write them: padded, with -100 at what is not learnt."""
    plain = {"input_ids": [5, 6, 7], "labels": None}
    padded = {
        "input_ids": [2, 2, 8, 9, 10],
        "labels": [-100, -100, -100, 9, 10],
        "attention_mask": [0, 0, 1, 1, 1],
    }
    causal = task(rows=[plain, padded], packing="none")
    [first, second] = causal.build_data().train
    assert first["input_ids"].tolist() == [5, 6] and first["labels"].tolist() == [6, 7]
    assert second["input_ids"].tolist() == [8, 9] and second["labels"].tolist() == [9, 10]
    assert "data: columns input_ids" in causal.notices()
    [_, whole] = (
        task(
            rows=[plain, {**padded, "labels": [-100, -100, -100, -100, 10]}],
            learn="all",
            packing="none",
        )
        .build_data()
        .train
    )
    assert whole["labels"].tolist() == [9, 10]


@pytest.mark.parametrize(
    "row",
    [
        {"input_ids": [5, 6, 7], "labels": [5, 6]},
        {"input_ids": [5, 6, 7], "labels": [5, 6, 8]},
        {"input_ids": [5, 6, 320]},
        {"input_ids": [5, 6, -1]},
        {"input_ids": [5, 6.5, 7]},
        {"input_ids": [5, 6, 7], "attention_mask": [1, 1]},
    ],
    ids=str,
)
def test_tokens_that_cannot_be_learnt_are_refused(
    row: dict[str, Any], task: Callable[..., CausalLM]
) -> None:
    good = {"input_ids": [5, 6, 7]}
    with pytest.raises(ConfigError, match=r"a.jsonl row 2': input_ids, labels and attention_mask"):
        task(rows=[good, row]).build_data()
    assert len(task(rows=[good, row], bad_rows="leave_out").build_data().train) == 1


BAD = [conversation("a", "b"), {"messages": []}, conversation("c", "d"), {"messages": "x"}]


def test_bad_rows_are_counted_and_left_out_on_request(task: Callable[..., CausalLM]) -> None:
    with pytest.raises(ConfigError, match=r"a.jsonl row 2 message 1': must be \{role"):
        task(rows=BAD).build_data()
    causal = task(rows=BAD, bad_rows="leave_out", packing="none")
    assert len(causal.build_data().train) == 2
    assert any(line.startswith("2 bad rows are left out, the first: ") for line in causal.notices())
    with pytest.raises(
        ConfigError, match=r"no row has a token to train on; 1 bad rows .*must be \{"
    ):
        task(rows=BAD[1:2], messages_column="messages", bad_rows="leave_out").build_data()
