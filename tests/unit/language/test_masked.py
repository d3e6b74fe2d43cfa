"""Masked words: which ones, how many, and the same loss as transformers."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_language import BERT, VOCABULARY, paragraphs, save_masked
from whole_model import build_whole

from trainer import ConfigError
from trainer.data.seeds import generator_of
from trainer.language import Adapter, MaskedLM
from trainer.language.packing import IGNORED


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_masked(tmp_path_factory.mktemp("masked") / "bert")


def task(bert: Path, texts: Path, **settings: Any) -> MaskedLM:
    given = {
        "model": str(bert),
        "data": str(texts),
        "sequence_length": 32,
        "cache_dir": str(bert.parent / "cache"),
    }
    return MaskedLM(**{**given, **settings})


@pytest.mark.parametrize("adapter", [None, Adapter(r=2, quantize="nf4")])
def test_loss_is_that_of_transformers_on_the_same_masked_batch(
    bert: Path, texts: Path, adapter: Adapter | None
) -> None:
    from transformers import AutoModelForMaskedLM

    masked_lm = task(bert, texts, adapter=adapter)
    data = masked_lm.build_data()
    model = build_whole(masked_lm).eval()
    assert data.collate is not None and data.augment is not None
    rows = [data.augment(data.train[number], generator_of(0, 0, number)) for number in range(6)]
    batch = data.collate(rows)
    present = batch["attention_mask"]
    assert 0 < present.sum() < present.numel(), "some rows are padded"

    theirs: Any = model if adapter else AutoModelForMaskedLM.from_pretrained(bert).eval()
    with torch.no_grad():
        expected = theirs(**batch).loss.item()
        assert masked_lm.training_step(model, batch).item() == pytest.approx(expected, rel=1e-6)
        metrics = masked_lm.evaluation_step(model, batch)

    weight = masked_lm.weight(batch)
    assert weight == metrics["tokens"][0] == (batch["labels"] != IGNORED).sum()
    assert metrics["loss"][0].item() == pytest.approx(expected * int(weight), rel=1e-6)


def test_of_15_in_100_tokens_80_are_hidden_10_are_others_and_10_are_left(
    bert: Path, texts: Path
) -> None:
    masked_lm = task(bert, texts)
    tokenizer = masked_lm.load_tokenizer()
    mask = masked_lm.build_data().augment
    assert mask is not None

    assert {0, 2} <= set(tokenizer.all_special_ids)
    words = torch.arange(3, VOCABULARY).repeat(40)
    ids = torch.cat([torch.tensor([0]), words, torch.tensor([2])])
    row, again, other = (mask(ids, generator_of(seed)) for seed in (0, 0, 1))
    chosen = row["labels"] != IGNORED
    assert int(chosen.sum()) == pytest.approx(0.15 * len(words), rel=0.05)
    assert not chosen[0] and not chosen[-1], "special tokens are not predicted"
    was, became = ids[chosen], row["input_ids"][chosen]
    assert torch.equal(row["labels"][chosen], was)
    assert torch.equal(row["input_ids"][~chosen], ids[~chosen])

    shares = [(became == given).float().mean().item() for given in (tokenizer.mask_token_id, was)]
    assert shares == pytest.approx([0.8, 0.1], abs=0.03)
    assert len(set(became.tolist())) > 100, "others are any tokens"

    assert torch.equal(row["input_ids"], again["input_ids"])
    assert not torch.equal(row["input_ids"], other["input_ids"])


def test_texts_are_cut_without_losing_a_token_and_evaluated_with_the_same_mask(
    bert: Path, texts: Path
) -> None:
    masked_lm = task(bert, texts, evaluation=0.1)
    data = masked_lm.build_data()
    evaluated = list(data.evaluation)
    whole = [
        torch.maximum(row["labels"], row["input_ids"] * (row["labels"] < 0)) for row in evaluated
    ]
    pieces = [*map(data.train.__getitem__, range(len(data.train))), *whole]
    assert all(0 < len(ids) <= 32 for ids in pieces)
    ids = [masked_lm.load_tokenizer()(text)["input_ids"] for text in paragraphs(120)]
    expected = torch.tensor([*chain(*ids), *[0] * 120])
    assert torch.equal(torch.cat(pieces).bincount(), expected.bincount())
    for number, row in enumerate(evaluated):
        assert torch.equal(row["input_ids"], data.evaluation[number]["input_ids"])


def test_masked_model_from_scratch_and_wrong_settings_are_refused(
    bert: Path, texts: Path, llama: Path, tmp_path: Path
) -> None:
    from transformers import AutoModel

    scratch = task(bert, texts, model=None, config=BERT, tokenizer=str(bert))
    assert scratch.build_model().config.architectures == ["BertForMaskedLM"]
    AutoModel.from_pretrained(bert).save_pretrained(tmp_path / "headless")
    headless = task(tmp_path / "headless", texts, tokenizer=str(bert))
    rule = r"its files lack cls\.predictions.* which would begin as random numbers"
    with pytest.raises(ConfigError, match=rule):
        headless.build_model()
    with pytest.raises(ValueError, match="does not have a mask token"):
        task(llama, texts).build_data()
    with pytest.raises(ConfigError, match=r"cannot be loaded: Unrecognized configuration class"):
        task(llama, texts).build_model()
