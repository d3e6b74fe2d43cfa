"""Documents cut and put together into rows of one length, and rows collated into batches.

A document of n tokens has n - 1 positions: position i holds token i and predicts token i + 1. A
document with more positions than a row is cut without losing a prediction: the last position of a
piece predicts the first token of the next piece.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from ..data.cache import prepare_once
from .problems import setting_error
from .tokens import TARGET, Corpus, Int64Array, UInt32Array

IGNORED = -100  # label of a position that has no loss
FORMAT = 2  # raise it when the same documents become other rows
Packing = Literal["best_fit", "none"]
LongDocuments = Literal["split", "cut", "refuse"]


class Rows(Dataset[dict[str, Tensor]]):
    """Rows of a corpus, each with one document or several pieces of documents.

    ``version`` changes with the documents' tokens and with which of them are targets, and with
    nothing else.

    Args:
        corpus: with the tokens.
        chosen: documents of the corpus, by number.
        length: positions of a row.
        packing: ``best_fit`` fills rows with pieces. ``none`` gives each piece a row.
        long_documents: what to do with a document that has more positions than a row.
        cache: folder in which the plan of the rows is kept.

    Raises:
        ConfigError: a document is longer than a row, and ``long_documents`` is ``refuse``, or no
            row is left.
    """

    def __init__(
        self,
        corpus: Corpus,
        chosen: Int64Array,
        *,
        length: int,
        packing: Packing,
        long_documents: LongDocuments,
        cache: str,
    ) -> None:
        self.tokens = corpus.tokens
        self.ends = corpus.ends[chosen]
        self.version = corpus.version(chosen)
        longest = int((self.ends - corpus.starts[chosen]).max())
        if longest - 1 > length and long_documents == "refuse":
            rule = f"a document has {longest:,} tokens; raise it, or set long_documents"
            raise setting_error("sequence_length", length, rule)

        def write_plan(folder: Path) -> None:
            pieces = cut_documents(
                self.tokens,
                corpus.starts[chosen],
                self.ends,
                length,
                keep_rest=long_documents == "split",
            )
            rows = np.arange(len(pieces) + 1)
            if packing == "best_fit":
                order, rows = best_fit(pieces[:, 1], length)
                pieces = pieces[order]
            np.save(folder / "pieces.npy", pieces)
            np.save(folder / "rows.npy", rows)

        # The plan is made once per machine. Other tokens or other settings are another plan.
        # Mapped: all ranks and workers of a machine share the same pages of memory.
        folder = prepare_once(
            cache, [FORMAT, self.version, length, packing, long_documents], write_plan
        )
        self.pieces = np.load(folder / "pieces.npy", mmap_mode="r")
        self.rows = np.load(folder / "rows.npy", mmap_mode="r")
        if len(self) == 0:
            rule = "no document has a token to train on in its first positions; raise it"
            raise setting_error("sequence_length", length, rule)

    def __len__(self) -> int:
        return len(self.rows) - 1

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return input_ids, labels and position_ids of a row, each (positions,) in int64."""
        begin, end = self.rows[index], self.rows[index + 1]  # IndexError behind the last row
        pieces = self.pieces[begin:end]
        places = np.concatenate([start + np.arange(length) for start, length in pieces])

        # Position i holds token i and predicts token i + 1.
        predicted = self.tokens[places + 1]
        labels = np.where(predicted & TARGET, (predicted & ~TARGET).astype(np.int64), IGNORED)
        row = {
            "input_ids": (self.tokens[places] & ~TARGET).astype(np.int64),
            "labels": labels,
            "position_ids": places - np.repeat(*pieces.T),
        }
        return {name: torch.from_numpy(column) for name, column in row.items()}


@dataclass(frozen=True, kw_only=True)
class Collate:
    """A function that makes a batch of rows.

    Args:
        length: to which rows are padded. None: to the longest of the batch.
        padding: token of padded positions, which have no loss.
    """

    length: int | None
    padding: int = 0

    def __call__(self, rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return input_ids, labels and position_ids, each (rows, positions)."""
        width = self.length or max(len(row["labels"]) for row in rows)
        padded = []
        for row in rows:
            # Padding counts from 0 again: a document of its own, which no other one attends to.
            positions = torch.arange(width - len(row["labels"]))
            padding = {
                "input_ids": torch.full_like(positions, self.padding),
                "labels": torch.full_like(positions, IGNORED),
                "position_ids": positions,
            }
            padded.append({name: torch.cat([row[name], padding[name]]) for name in padding})
        return default_collate(padded)  # type: ignore[no-any-return]


def cut_documents(
    tokens: UInt32Array, starts: Int64Array, ends: Int64Array, length: int, *, keep_rest: bool
) -> Int64Array:
    """Cut documents into pieces of at most ``length`` positions. Pieces without a target go out.

    Args:
        tokens: of all documents. The bit ``TARGET`` says which have a loss.
        starts, ends: of each document, in ``tokens``.
        length: positions of a row.
        keep_rest: keep all pieces of a long document with a target. Else only its first piece.

    Returns:
        (first token, positions) of each piece, as (n, 2).
    """
    pieces = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        stop = end - 1 if keep_rest else start + 1
        for first in range(start, stop, length):
            size = min(length, end - 1 - first)
            if (tokens[first + 1 : first + size + 1] & TARGET).any():
                pieces.append((first, size))
    return np.array(pieces, np.int64).reshape(-1, 2)


def best_fit(lengths: Int64Array, capacity: int) -> tuple[Int64Array, Int64Array]:
    """Put pieces into rows: the longest first, each into the row where the least stays free.

    The time is almost linear in the number of pieces, since rows are kept by how much of them is
    free.

    Args:
        lengths: of the pieces, each at least 1 and at most ``capacity``.
        capacity: of a row.

    Returns:
        The order of the pieces, and where in it each row begins, with the end behind the last.
    """
    by_size = np.argsort(-lengths, kind="stable")
    rows_by_free: defaultdict[int, list[int]] = defaultdict(list)
    amounts = [capacity]  # those that are free in some row, the smallest first
    new_rows = count()
    belongs = []  # the row of each piece
    for size in lengths[by_size].tolist():
        place = bisect_left(amounts, size)
        free = amounts[place]
        row = next(new_rows) if free == capacity else rows_by_free[free].pop()
        if free < capacity and not rows_by_free[free]:
            del amounts[place]

        belongs.append(row)
        free -= size
        if free and not rows_by_free[free]:
            insort(amounts, free)
        rows_by_free[free].append(row)

    order = by_size[np.argsort(belongs, kind="stable")]
    return order, np.cumsum([0, *np.bincount(belongs)])
