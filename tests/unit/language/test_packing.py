"""Rows hold every prediction once, are full on real text, and borders are where documents begin."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_language import paragraphs, save_texts, tokenizer

from trainer import ConfigError, DataError
from trainer.language import CausalLM
from trainer.language.packing import IGNORED, Collate, Rows, best_fit
from trainer.language.tokens import TARGET, Corpus


def corpus(folder: Path, *documents: list[int], learnt: Callable[[int], bool] = bool) -> Corpus:
    """Documents of the given tokens, of which those are learnt that ``learnt`` says."""
    tokens = [
        token | (int(TARGET) if learnt(token) else 0)
        for document in documents
        for token in document
    ]
    ends = np.cumsum([len(document) for document in documents])
    return Corpus(tokens=np.array(tokens, np.uint32), ends=ends, folder=folder, left_out=0)


def rows_of(found: Corpus, cache: Path, length: int, **settings: Any) -> Rows:
    chosen = np.arange(len(found.ends))
    options: dict[str, Any] = {"packing": "best_fit", "long_documents": "split", **settings}
    return Rows(found, chosen, length=length, cache=str(cache), key="data", **options)


def predictions(rows: Rows) -> list[tuple[int, int]]:
    """All (token, token to predict) of all rows."""
    pairs = [
        pair
        for at in range(len(rows))
        for pair in zip(rows[at]["input_ids"], rows[at]["labels"], strict=True)
    ]
    return sorted((int(token), int(label)) for token, label in pairs)


def test_every_prediction_of_every_document_comes_once(tmp_path: Path) -> None:
    documents = [[1, 2, 3], list(range(10, 31)), [40, 41], list(range(50, 59))]
    wanted = sorted(pair for document in documents for pair in pairwise(document))
    for packing in ("best_fit", "none"):
        rows = rows_of(corpus(tmp_path, *documents), tmp_path, 8, packing=packing)
        assert predictions(rows) == wanted, "cut documents lose no prediction at the cut"
        assert all(len(rows[at]["input_ids"]) <= 8 for at in range(len(rows)))
    assert len(rows) == 1 + 3 + 1 + 1, "none: a row for each piece"


def test_the_plan_of_the_rows_is_mapped_and_not_held_by_each_process(tmp_path: Path) -> None:
    rows = rows_of(corpus(tmp_path / "corpus", [1, 2, 3, 4]), tmp_path, 4)
    assert all(isinstance(part, np.memmap) for part in (rows.pieces, rows.rows))


def test_positions_begin_anew_at_each_document_and_where_a_row_is_filled_up(tmp_path: Path) -> None:
    rows = rows_of(corpus(tmp_path, [1, 2, 3, 4], [5, 6, 7]), tmp_path, 8)
    batch = Collate(length=8, padding=9)([rows[0]])
    assert batch["input_ids"].tolist() == [[1, 2, 3, 5, 6, 9, 9, 9]]
    assert batch["labels"].tolist() == [[2, 3, 4, 6, 7, *[IGNORED] * 3]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert Collate(length=None)([rows[0]])["input_ids"].shape == (1, 5), (
        "to the longest of the batch"
    )


def test_what_is_not_learnt_has_no_label_and_pieces_without_any_are_left_out(
    tmp_path: Path,
) -> None:
    found = corpus(tmp_path, [*range(1, 10), 100, 101], learnt=lambda token: token >= 100)
    rows = rows_of(found, tmp_path, 4)
    assert [pair for pair in predictions(rows) if pair[1] != IGNORED] == [(9, 100), (100, 101)]
    assert len(rows) == 1 and rows.fill.left_out == 2
    with pytest.raises(
        DataError, match="no document has a token to train on in its first 4 positions"
    ):
        rows_of(found, tmp_path, 4, long_documents="cut")


def test_long_documents_are_cut_or_refused_on_request(tmp_path: Path) -> None:
    found = corpus(tmp_path, [1, 2], list(range(10, 25)))
    rows = rows_of(found, tmp_path, 6, long_documents="cut")
    assert predictions(rows)[-1] == (15, 16) and rows.fill.long == 1
    with pytest.raises(
        ConfigError, match=r"sequence_length: 6: 1 documents have more tokens, up to 15; raise it"
    ):
        rows_of(found, tmp_path, 6, long_documents="refuse")
    assert (
        len(rows_of(corpus(tmp_path, list(range(7))), tmp_path, 6, long_documents="refuse")) == 1
    ), "7 tokens fit in 6"


def test_best_fit_fills_rows_and_keeps_to_their_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 5000)
    order, rows = best_fit(lengths, 512)
    assert sorted(order) == list(range(5000))
    sums = np.add.reduceat(lengths[order], rows[:-1])
    assert sums.max() <= 512 and lengths.sum() / (512 * len(sums)) > 0.995


def test_real_text_fills_rows_by_98_percent(task: Callable[..., CausalLM], tmp_path: Path) -> None:
    texts = save_texts(tmp_path / "many.jsonl", count=1500)
    built = task(data=str(texts), sequence_length=256).build_data().train
    assert built.fill.used >= 0.98 and built.fill.documents == len(paragraphs(1500)) > 1000
    text = tokenizer().decode(
        [int(token) for token in built[3]["input_ids"][built[3]["position_ids"] < 40][:30]]
    )
    assert any(text.split("<|end|>")[0].strip()[:20] in one for one in paragraphs(1500)), (
        "and it is that text"
    )


def test_rows_are_kept_for_the_next_time_and_made_anew_for_other_settings(
    task: Callable[..., CausalLM], texts: Path
) -> None:
    first = task()
    rows = first.build_data().train
    made = {path: path.stat().st_mtime_ns for path in Path(first.cache_dir).rglob("*.npy")}
    again = task().build_data().train
    assert {path: path.stat().st_mtime_ns for path in Path(first.cache_dir).rglob("*.npy")} == made
    assert torch.equal(rows[0]["input_ids"], again[0]["input_ids"])
    task(sequence_length=32).build_data()
    tokens = list(Path(first.cache_dir).rglob("tokens.bin"))
    assert len(tokens) == 1, "tokens are those of any length of the rows"
    assert len(list(Path(first.cache_dir).rglob("rows.npy"))) == 2
