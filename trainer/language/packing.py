"""Documents cut and put together into rows of the same length, and rows collated into batches.

A document of n tokens has n - 1 positions: position i holds token i and predicts token i + 1. A
document with more positions than a row is cut without losing a prediction: the last position of a
piece predicts the first token of the next piece.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate, default_convert

from ..data.cache import prepare_once
from .problems import setting_error
from .sources import Row
from .tokens import TARGET, Corpus, Encoder, Int64Array, UInt32Array, has_target, words_of

IGNORED = -100  # label of a position that has no loss
FORMAT = 2  # raised when the same documents become other rows


class Rows:
    """Rows of a corpus, each with a document or several pieces of documents.

    ``version`` is a hash of the documents' tokens and targets, and of nothing else.

    Args:
        chosen: documents of the corpus, by number.
        cache: parent of the folder with the plan of the rows.
        settings: of ``plan_rows``, in their order.
    """

    def __init__(self, corpus: Corpus, chosen: Int64Array, *, cache: str, **settings: Any) -> None:
        self.tokens = corpus.tokens
        self.version = corpus.version(chosen)

        def write_plan(folder: Path) -> None:
            pieces, rows = plan_rows(self.tokens, corpus.spans[chosen], **settings)
            np.save(folder / "pieces.npy", pieces)
            np.save(folder / "rows.npy", rows)

        # The plan is made once per machine. Other tokens or other settings are another plan.
        # Mapped: all ranks and workers of a machine share the same pages of memory.
        folder = prepare_once(cache, [FORMAT, self.version, *settings.values()], write_plan)
        self.pieces = np.load(folder / "pieces.npy", mmap_mode="r")
        self.rows = np.load(folder / "rows.npy", mmap_mode="r")

    @property
    def token_count(self) -> int:
        """Return the positions of all rows."""
        return int(self.pieces[:, 1].sum())

    def __len__(self) -> int:
        return len(self.rows) - 1

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return a row, as ``row_of`` does."""
        # IndexError behind the last row, which ends an iteration.
        return row_of(self.tokens, self.pieces[self.rows[index] : self.rows[index + 1]])


def plan_rows(
    tokens: UInt32Array,
    spans: Int64Array,
    *,
    length: int,
    packing: Literal["best_fit", "none"],
    long_documents: Literal["split", "cut", "refuse"],
) -> tuple[Int64Array, Int64Array]:
    """Cut documents into pieces, and put the pieces into rows.

    Returns:
        The pieces in the order of the rows, as of ``cut_documents``, and the first piece of each
        row, with the number of pieces behind.

    Raises:
        ConfigError: a document is longer than a row, and ``long_documents`` is ``refuse``.
    """
    if long_documents == "refuse" and (np.diff(spans) > length + 1).any():
        raise setting_error(
            "sequence_length",
            length,
            "a document has more tokens; set a longer one, or long_documents",
        )
    pieces = cut_documents(tokens, spans, length, keep_rest=long_documents == "split")
    rows = np.arange(len(pieces) + 1)
    if packing == "best_fit" and len(pieces):
        order, rows = best_fit(pieces[:, 1], length)
        pieces = pieces[order]
    return pieces, rows


def tokenize(
    rows: Sequence[Row], *, encoder: Encoder, settings: Mapping[str, Any]
) -> list[dict[str, Tensor]]:
    """Return the rows of documents that are tokenized now. ``settings`` are of ``plan_rows``."""
    coded = [*encoder.encode([("a row of data", row) for row in rows])]
    ends = np.cumsum([0, *map(len, coded)])
    tokens = np.concatenate([np.empty(0, np.uint32), *coded])
    pieces, begins = plan_rows(tokens, np.array([*pairwise(ends)]), **settings)
    return [row_of(tokens, pieces[first:last]) for first, last in pairwise(begins)]


def row_of(tokens: UInt32Array, pieces: Int64Array) -> dict[str, Tensor]:
    """Return input_ids, labels and position_ids of a row, each (positions,) in int64.

    ``pieces`` are (first token, positions) of each piece of the row, as (n, 2).
    """
    places = np.concatenate([start + np.arange(length) for start, length in pieces])

    # Position i holds token i and predicts token i + 1.
    predicted = tokens[places + 1]
    row = {
        "input_ids": words_of(tokens[places]),
        "labels": np.where(predicted & TARGET, words_of(predicted), IGNORED),
        "position_ids": places - np.repeat(*pieces.T),
    }
    return default_convert(row)  # type: ignore[no-any-return,no-untyped-call]


def collate(
    rows: Sequence[dict[str, Tensor]], *, padding: int, length: int | None = None, parts: int = 1
) -> dict[str, Tensor]:
    """Return a batch of rows, padded at the end. Each tensor is (rows, tokens).

    A row has input_ids, and any of labels, position_ids and attention_mask, each (tokens,).
    ``length`` is by default that of the longest row of the batch, and becomes a multiple of
    ``parts``. Padded positions have no loss.
    """
    width = length or max(len(row["input_ids"]) for row in rows)
    width += -width % parts
    # The positions of padding begin at 0: a document, which no other document attends to.
    padding_of = {
        "input_ids": torch.full((width,), padding),
        "labels": torch.full((width,), IGNORED),
        "position_ids": torch.arange(width),
        "attention_mask": torch.zeros(width, dtype=torch.long),
    }
    padded = [
        {name: torch.cat([own, padding_of[name][: width - len(own)]]) for name, own in row.items()}
        for row in rows
    ]
    return default_collate(padded)  # type: ignore[no-any-return]


def cut_documents(
    tokens: UInt32Array, spans: Int64Array, length: int, *, keep_rest: bool
) -> Int64Array:
    """Cut documents into pieces of at most ``length`` positions. Leave out those without a target.

    Returns (first token, positions) of each piece, as (n, 2), or only of the first piece of each
    document unless ``keep_rest``.
    """
    pieces = []
    for start, end in spans.tolist():
        stop = end - 1 if keep_rest else start + 1
        for first in range(start, stop, length):
            size = min(length, end - 1 - first)
            if has_target(tokens[first : first + size + 1]):
                pieces.append((first, size))
    return np.array(pieces, np.int64).reshape(-1, 2)


def best_fit(lengths: Int64Array, capacity: int) -> tuple[Int64Array, Int64Array]:
    """Put pieces into rows: the longest piece first, each into the fullest row with enough space.

    The time is almost linear in the number of pieces, since rows are kept by their free space.

    Returns:
        The pieces in the order of the rows, and the first piece of each row in that order, with
        the number of pieces behind.
    """
    by_size = np.argsort(-lengths, kind="stable")
    rows_by_free = defaultdict(list, {capacity: list(range(len(lengths)))[::-1]})
    amounts = [capacity]  # free positions of some row, the smallest first
    belongs = []  # the row of each piece
    for size in lengths[by_size].tolist():
        place = bisect_left(amounts, size)
        free = amounts[place]
        row = rows_by_free[free].pop()
        if not rows_by_free[free]:
            del amounts[place]

        belongs.append(row)
        free -= size
        if not rows_by_free[free]:
            insort(amounts, free)
        rows_by_free[free].append(row)

    order = by_size[np.argsort(belongs, kind="stable")]
    return order, np.cumsum([0, *np.bincount(belongs)])
