"""Documents cut and put together into rows of one length, and rows collated into batches.

A document of n tokens has n - 1 positions: position i holds token i and predicts token i + 1. A
document with more positions than a row is cut without losing a prediction: the last position of a
piece predicts the first token of the next piece.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ..data.cache import prepare_once
from ..errors import DataError
from .problems import setting_error
from .tokens import TARGET, Corpus, Int64Array, UInt32Array

IGNORED = -100  # label of a position that has no loss
FORMAT = 1  # raise it when the same documents become other rows
Packing = Literal["best_fit", "none"]
LongDocuments = Literal["split", "cut", "refuse"]


@dataclass(frozen=True, kw_only=True)
class Fill:
    """Counts of what became of the documents, for the banner.

    Args:
        documents: number of documents.
        tokens: number of their tokens.
        rows: number of rows that they became.
        used: share of all positions that hold a token.
        long: documents with more positions than a row.
        left_out: rows of the source, and pieces of documents, without a token to train on.
    """

    documents: int
    tokens: int
    rows: int
    used: float
    long: int
    left_out: int

    def __str__(self) -> str:
        text = f"{self.documents:,} documents, {self.tokens:,} tokens, "
        text += f"{self.rows:,} rows {self.used:.1%} full"
        if self.long:
            text += f", {self.long:,} longer than a row"
        if self.left_out:
            text += f", {self.left_out:,} without a token to train on left out"
        return text


class Rows(Dataset[dict[str, Tensor]]):
    """Rows of a corpus, each with one document or several pieces of documents.

    ``version`` changes with the documents' tokens and with which of them are targets, and with
    nothing else.

    Args:
        corpus: with the tokens.
        chosen: documents of the corpus, by number.
        length: positions of a row.
        packing: ``best_fit`` fills rows with pieces; ``none`` gives each piece a row.
        long_documents: what to do with a document that has more positions than a row.
        cache: folder in which the plan of the rows is kept.
        key: of the setting that names the data, for messages.

    Raises:
        ConfigError: a document is longer than a row, and ``long_documents`` is ``refuse``.
        DataError: no row is left.
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
        key: str,
    ) -> None:
        self.tokens = corpus.tokens
        self.starts = corpus.starts[chosen]
        self.ends = corpus.ends[chosen]
        self.version = corpus.version(chosen)

        positions = self.ends - self.starts - 1
        long = int((positions > length).sum())
        if long and long_documents == "refuse":
            most = positions.max() + 1
            rule = f"{long:,} documents have more tokens, up to {most:,}; "
            rule += "raise it, or set long_documents"
            raise setting_error("sequence_length", length, rule)

        # The plan is made once per machine; other content or other settings are another plan.
        chosen_digest = hashlib.sha256(chosen.astype(np.int64).tobytes()).hexdigest()
        content = [FORMAT, corpus.folder.name, chosen_digest, length, packing, long_documents]

        def make(folder: Path) -> None:
            self._write_plan(folder, length, packing, keep_rest=long_documents == "split")

        folder = prepare_once(cache, content, make)

        # Mapped: all ranks and workers of a machine share the same pages of memory.
        self.pieces = np.load(folder / "pieces.npy", mmap_mode="r")
        self.rows = np.load(folder / "rows.npy", mmap_mode="r")
        if len(self) == 0:
            rule = f"no document has a token to train on in its first {length} positions"
            raise DataError(f"task_settings.{key}: {rule}")

        about = json.loads((folder / "about.json").read_text(encoding="utf-8"))
        self.fill = Fill(
            documents=len(chosen),
            tokens=int((self.ends - self.starts).sum()),
            rows=len(self),
            used=int(self.pieces[:, 1].sum()) / (len(self) * length),
            long=long,
            left_out=corpus.left_out + about["without"],
        )

    def _write_plan(self, folder: Path, length: int, packing: Packing, *, keep_rest: bool) -> None:
        """Write which pieces of documents there are, and which row has which of them."""
        pieces, without_target = cut_documents(
            self.tokens, self.starts, self.ends, length, keep_rest=keep_rest
        )
        if packing == "best_fit":
            order, rows = best_fit(pieces[:, 1], length)
            pieces = pieces[order]
        else:
            rows = np.arange(len(pieces) + 1)

        np.save(folder / "pieces.npy", pieces)
        np.save(folder / "rows.npy", rows)
        (folder / "about.json").write_text(json.dumps({"without": without_target}))

    def __len__(self) -> int:
        return len(self.rows) - 1

    def _pieces_of(self, index: int) -> list[list[int]]:
        """Return [first token, positions] of each piece in a row; IndexError behind the last."""
        begin, end = self.rows[index], self.rows[index + 1]
        pieces: list[list[int]] = self.pieces[begin:end].tolist()
        return pieces

    def cuts(self, index: int) -> list[tuple[bool, bool]]:
        """Return of each piece in a row whether its document is cut before it, and behind it."""
        cuts = []
        for start, length in self._pieces_of(index):
            document = int(np.searchsorted(self.ends, start, side="right"))
            cut_before = start > self.starts[document]
            cut_behind = start + length + 1 < self.ends[document]
            cuts.append((bool(cut_before), bool(cut_behind)))
        return cuts

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Return input_ids, labels and position_ids of a row, each (positions,) in int64."""
        ids, labels, positions = [], [], []
        for start, length in self._pieces_of(index):
            piece = self.tokens[start : start + length + 1]
            is_target = (piece & TARGET) != 0
            tokens = (piece & ~TARGET).astype(np.int64)

            # Position i holds token i and predicts token i + 1.
            ids.append(tokens[:-1])
            labels.append(np.where(is_target[1:], tokens[1:], IGNORED))
            positions.append(np.arange(length))

        return {
            "input_ids": torch.from_numpy(np.concatenate(ids)),
            "labels": torch.from_numpy(np.concatenate(labels)),
            "position_ids": torch.from_numpy(np.concatenate(positions)),
        }


@dataclass(frozen=True, kw_only=True)
class Collate:
    """A function that makes a batch of rows.

    Args:
        length: to which rows are padded; None: to the longest of the batch.
        padding: token of padded positions, which have no loss.
    """

    length: int | None
    padding: int = 0

    def __call__(self, rows: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return input_ids, labels and position_ids, each (rows, positions)."""
        width = self.length or max(len(row["input_ids"]) for row in rows)
        ids = torch.full((len(rows), width), self.padding)
        labels = torch.full_like(ids, IGNORED)
        positions = torch.zeros_like(ids)

        for number, row in enumerate(rows):
            size = len(row["input_ids"])
            ids[number, :size] = row["input_ids"]
            labels[number, :size] = row["labels"]
            positions[number, :size] = row["position_ids"]
            # Padding counts from 0 again: a document of its own, which no other one attends to.
            positions[number, size:] = torch.arange(width - size)

        return {"input_ids": ids, "labels": labels, "position_ids": positions}


def cut_documents(
    tokens: UInt32Array, starts: Int64Array, ends: Int64Array, length: int, *, keep_rest: bool
) -> tuple[Int64Array, int]:
    """Cut documents into pieces of at most ``length`` positions.

    Args:
        tokens: of all documents; the bit ``TARGET`` says which have a loss.
        starts, ends: of each document, in ``tokens``.
        length: positions of a row.
        keep_rest: keep all pieces of a long document; else only its first one.

    Returns:
        (first token, positions) of each piece, as (n, 2), and how many pieces of long documents
        were left out because they have no target.
    """
    pieces = []
    without_target = 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        positions = end - start - 1
        if positions <= length:
            pieces.append((start, positions))
            continue

        stop = end - 1 if keep_rest else start + 1
        for first in range(start, stop, length):
            size = min(length, end - 1 - first)
            predicted = tokens[first + 1 : first + size + 1]
            if (predicted & TARGET).any():
                pieces.append((first, size))
            else:
                without_target += 1

    return np.array(pieces, np.int64).reshape(-1, 2), without_target


def best_fit(lengths: Int64Array, capacity: int) -> tuple[Int64Array, Int64Array]:
    """Put pieces into rows: the longest first, each into the row where the least stays free.

    The time is linear in the number of pieces, since rows are kept by how much of them is free,
    and one large integer says by its bits for which amounts there is a row.

    Args:
        lengths: of the pieces, each at least 1 and at most ``capacity``.
        capacity: of a row.

    Returns:
        The order of the pieces, and where in it each row begins, with the end behind the last.
    """
    rows: list[list[int]] = []
    rows_by_free: list[list[int]] = [[] for _ in range(capacity + 1)]
    free_bits = 0  # bit n is set where rows_by_free[n] is not empty

    for piece in np.argsort(-lengths, kind="stable").tolist():
        size = int(lengths[piece])
        fitting = free_bits >> size
        if fitting:
            # The lowest bit that is set: the row that this piece leaves fullest.
            lowest = (fitting & -fitting).bit_length() - 1
            free = size + lowest
            row = rows_by_free[free].pop()
            if not rows_by_free[free]:
                free_bits ^= 1 << free
            rows[row].append(piece)
        else:
            free = capacity
            row = len(rows)
            rows.append([piece])

        left = free - size
        if left:
            rows_by_free[left].append(row)
            free_bits |= 1 << left

    order = np.array([piece for row in rows for piece in row], np.int64)
    begins = np.cumsum([0, *map(len, rows)])
    return order, begins
