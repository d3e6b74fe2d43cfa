"""Rows hold every prediction once, are full on real text, and are kept for the next time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer import ConfigError
from trainer.language import CausalLM
from trainer.language.packing import IGNORED, Rows, best_fit, collate
from trainer.language.tokens import TARGET, Corpus


def corpus(*documents: list[int], is_target: Callable[[int], bool] = bool) -> Corpus:
    """A corpus of the given tokens, of which those are targets that ``is_target`` says."""
    tokens = []
    for token in chain(*documents):
        tokens.append(token | int(TARGET) if is_target(token) else token)
    ends = np.cumsum([len(document) for document in documents])
    return Corpus(tokens=np.array(tokens, np.uint32), ends=ends, content=str(documents))


def rows_of(found: Corpus, cache: Path, length: int, **settings: Any) -> Rows:
    chosen = np.arange(len(found))
    options: dict[str, Any] = {"packing": "best_fit", "long_documents": "split", **settings}
    return Rows(found, chosen, length=length, cache=str(cache), **options)


def predictions(rows: Rows) -> list[tuple[int, int]]:
    """All (token, token to predict) of all rows."""
    pairs: list[tuple[int, int]] = []
    for number in range(len(rows)):
        row = rows[number]
        pairs += zip(row["input_ids"].tolist(), row["labels"].tolist(), strict=True)
    return sorted(pairs)


def test_every_prediction_of_every_document_comes_once(tmp_path: Path) -> None:
    documents = [[1, 2, 3], list(range(10, 31)), [40, 41], list(range(50, 59))]
    wanted = sorted(chain(*map(pairwise, documents)))
    for packing in ("best_fit", "none"):
        rows = rows_of(corpus(*documents), tmp_path, 8, packing=packing)
        assert predictions(rows) == wanted, "cut documents lose no prediction at the cut"
        assert all(len(rows[number]["input_ids"]) <= 8 for number in range(len(rows)))
    assert len(rows) == 1 + 3 + 1 + 1, "none: a row for each piece"


def test_the_plan_of_the_rows_is_memory_mapped(tmp_path: Path) -> None:
    rows = rows_of(corpus([1, 2, 3, 4]), tmp_path, 4)
    assert all(isinstance(part, np.memmap) for part in (rows.pieces, rows.rows))


def test_positions_restart_at_each_document_and_at_the_padding(tmp_path: Path) -> None:
    rows = rows_of(corpus([1, 2, 3, 4], [5, 6, 7]), tmp_path, 8)
    batch = collate([rows[0]], length=8, padding=9)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 5, 6, 9, 9, 9]]
    assert batch["labels"].tolist() == [[2, 3, 4, 6, 7, *[IGNORED] * 3]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert collate([rows[0]], padding=0)["input_ids"].shape == (1, 5), "to the longest of the batch"


def test_tokens_that_are_no_targets_have_no_label_and_pieces_without_any_are_left_out(
    tmp_path: Path,
) -> None:
    found = corpus([*range(1, 10), 100, 101], is_target=lambda token: token >= 100)
    rows = rows_of(found, tmp_path, 4)
    assert [pair for pair in predictions(rows) if pair[1] != IGNORED] == [(9, 100), (100, 101)]
    assert len(rows) == 1
    assert len(rows_of(found, tmp_path, 4, long_documents="cut")) == 0, "refused as empty data"


def test_long_documents_are_cut_or_refused_on_request(tmp_path: Path) -> None:
    found = corpus([1, 2], list(range(10, 25)))
    rows = rows_of(found, tmp_path, 6, long_documents="cut")
    assert predictions(rows)[-1] == (15, 16)
    with pytest.raises(
        ConfigError, match=r"sequence_length: 6: a document has more tokens; set a longer"
    ):
        rows_of(found, tmp_path, 6, long_documents="refuse")
    assert len(rows_of(corpus(list(range(7))), tmp_path, 6, long_documents="refuse")) == 1, (
        "7 tokens fit in 6"
    )


def test_best_fit_fills_rows_and_keeps_to_their_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 300, 5000)
    order, rows = best_fit(lengths, 512)
    assert sorted(order) == list(range(5000))
    sums = np.add.reduceat(lengths[order], rows[:-1])
    assert sums.max() <= 512 and lengths.sum() / (512 * len(sums)) > 0.995


def test_rows_are_cached_and_made_again_for_other_settings(
    task: Callable[..., CausalLM], texts: Path
) -> None:
    first = task()
    cache = Path(first.cache_dir)

    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in cache.rglob("*.npy")}

    rows = first.build_data().train
    made = times()
    again = task().build_data().train
    assert times() == made
    assert torch.equal(rows[0]["input_ids"], again[0]["input_ids"])

    task(sequence_length=32).build_data()
    assert len(list(cache.rglob("tokens.bin"))) == 1, "tokens do not depend on the length of rows"
    assert len(list(cache.rglob("rows.npy"))) == 2
