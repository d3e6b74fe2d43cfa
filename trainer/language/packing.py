"""Documents cut and put together into rows of one length, and rows as the model sees them.

A document of n tokens has n - 1 predictions: position i holds token i and is to predict token i +
1. A longer one is cut without losing any: the last position of a piece predicts the first token of
the next.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..data.cache import prepare_once
from ..errors import DataError
from .problems import setting_error
from .tokens import LEARNT, Corpus

IGNORED = -100  # label of a position that predicts nothing
FORMAT = 1  # raise it when the same documents become other rows
Packing = Literal["best_fit", "none"]
LongDocuments = Literal["split", "cut", "refuse"]
Numbers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Fill:
    """What became of documents: counts of documents, rows and of those that were longer than a row;
    positions used.

    Args:
        used: share of all positions that hold a token.
        left_out: rows of the source, and pieces of documents, without a token to learn.
    """

    documents: int
    tokens: int
    rows: int
    used: float
    long: int
    left_out: int

    def __str__(self) -> str:
        more = f", {self.long:,} longer than a row" if self.long else ""
        more += f", {self.left_out:,} without anything to learn left out" if self.left_out else ""
        return f"{self.documents:,} documents, {self.tokens:,} tokens, {self.rows:,} rows {self.used:.1%} full{more}"


class Rows(Dataset[dict[str, Tensor]]):
    """Rows of a corpus, each with one document or several pieces.

    Args:
        chosen: documents of the corpus by number.
        length: positions of a row.
        cache: the plan of the rows is kept there.

    ``version`` changes with the documents' tokens and with what of them is learnt, and with nothing
    else.

    Raises:
        ConfigError: a document is longer than a row, and ``long_documents`` is ``refuse``.
        DataError: no row is left.
    """

    def __init__(
        self,
        corpus: Corpus,
        chosen: Numbers,
        *,
        length: int,
        packing: Packing,
        long_documents: LongDocuments,
        cache: str,
        key: str,
    ) -> None:
        self.tokens, self.length, self.packed = corpus.tokens, length, packing == "best_fit"
        starts, ends = self.starts, self.ends = corpus.starts[chosen], corpus.ends[chosen]
        positions = ends - starts - 1
        long = int((positions > length).sum())
        if long and long_documents == "refuse":
            rule = f"{long:,} documents have more tokens, up to {positions.max() + 1:,}; raise it, or set long_documents"
            raise setting_error("sequence_length", length, rule)
        content = [
            FORMAT,
            corpus.folder.name,
            hashlib.sha256(chosen.astype(np.int64).tobytes()).hexdigest(),
        ]

        def make(folder: Any) -> None:
            pieces, without = _pieces(
                corpus.tokens, starts, ends, length, keep_rest=long_documents == "split"
            )
            order, rows = (
                best_fit(pieces[:, 1], length)
                if self.packed
                else (slice(None), np.arange(len(pieces) + 1))
            )
            np.save(folder / "pieces.npy", pieces[order])
            np.save(folder / "rows.npy", rows)
            (folder / "about.json").write_text(json.dumps({"without": without}))

        folder = prepare_once(cache, [*content, length, packing, long_documents], make)
        # Mapped: every rank and worker of a machine reads the same pages.
        self.pieces, self.rows = (
            np.load(folder / f"{name}.npy", mmap_mode="r") for name in ("pieces", "rows")
        )
        if len(self) == 0:
            raise DataError(
                f"task_settings.{key}: no document has a token to learn in its first {length} positions"
            )
        used = int(self.pieces[:, 1].sum())
        self.fill = Fill(
            documents=len(chosen),
            tokens=int((ends - starts).sum()),
            rows=len(self),
            used=used / (len(self) * length),
            long=long,
            left_out=corpus.left_out
            + json.loads((folder / "about.json").read_text(encoding="utf-8"))["without"],
        )

        self.version = corpus.version(chosen)

    def __len__(self) -> int:
        return len(self.rows) - 1

    def cuts(self, index: int) -> list[tuple[bool, bool]]:
        """Say of each piece in a row whether its document was cut: before it, and behind it."""
        found = []
        for start, length in self.pieces[self.rows[index] : self.rows[index + 1]].tolist():
            document = int(np.searchsorted(self.ends, start, side="right"))
            cut_behind = start + length + 1 < self.ends[document]
            found.append((bool(start > self.starts[document]), bool(cut_behind)))
        return found

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        parts: dict[str, list[Any]] = {"input_ids": [], "labels": [], "position_ids": []}
        for start, length in self.pieces[self.rows[index] : self.rows[index + 1]].tolist():
            found = self.tokens[start : start + length + 1]
            ids = (found & ~LEARNT).astype(np.int64)
            parts["input_ids"].append(ids[:-1])
            parts["labels"].append(np.where(found[1:] & LEARNT, ids[1:], IGNORED))
            parts["position_ids"].append(np.arange(length))
        return {name: torch.from_numpy(np.concatenate(values)) for name, values in parts.items()}


@dataclass(frozen=True, kw_only=True)
class Collate:
    """A function that makes a batch of rows.

    Args:
        length: rows are filled up to it; None: to the longest of the batch.
        filler: token of positions that hold none; they predict nothing.
    """

    length: int | None
    filler: int = 0

    def __call__(self, rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        width = self.length or max(len(row["input_ids"]) for row in rows)
        ids = torch.full((len(rows), width), self.filler)
        labels, positions = torch.full_like(ids, IGNORED), torch.zeros_like(ids)
        for at, row in enumerate(rows):
            size = len(row["input_ids"])
            ids[at, :size], labels[at, :size] = row["input_ids"], row["labels"]
            # What fills a row up is a document of its own, which nobody looks at.
            positions[at] = torch.cat([row["position_ids"], torch.arange(width - size)])
        return {"input_ids": ids, "labels": labels, "position_ids": positions}


def _pieces(
    tokens: np.ndarray[Any, np.dtype[np.uint32]],
    starts: Numbers,
    ends: Numbers,
    length: int,
    *,
    keep_rest: bool,
) -> tuple[Numbers, int]:
    """Cut documents into pieces of at most ``length`` positions: (first token, positions) of each,
    as (n, 2).

    Returns:
        The pieces, and how many were left out because nothing of them is learnt.
    """
    pieces, without = [], 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        if end - start - 1 <= length:
            pieces.append((start, end - start - 1))
            continue
        for at in range(start, end - 1 if keep_rest else start + 1, length):
            size = min(length, end - 1 - at)
            if (tokens[at + 1 : at + size + 1] & LEARNT).any():
                pieces.append((at, size))
            else:
                without += 1
    return np.array(pieces, np.int64).reshape(-1, 2), without


def best_fit(lengths: Numbers, capacity: int) -> tuple[Numbers, Numbers]:
    """Put pieces into rows: the longest first, each into the row that it leaves the least free.

    Args:
        lengths: of the pieces, each at least 1 and at most ``capacity``.

    Returns:
        The order of the pieces, and where in it each row begins, with the end behind the last.
    """
    rows: list[list[int]] = []
    open_rows: list[list[int]] = [[] for _ in range(capacity + 1)]  # by the positions that are free
    some_free = 0  # bit n: there is a row with n free positions
    for piece in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[piece])
        fitting = some_free >> size
        if fitting:
            free = size + (fitting & -fitting).bit_length() - 1
            row = open_rows[free].pop()
            if not open_rows[free]:
                some_free ^= 1 << free
            rows[row].append(piece)
        else:
            free, row = capacity, len(rows)
            rows.append([piece])
        if left := free - size:
            open_rows[left].append(row)
            some_free |= 1 << left
    order = np.array([piece for row in rows for piece in row], np.int64)
    return order, np.cumsum([0, *map(len, rows)])
