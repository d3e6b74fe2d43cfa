"""Columns of a matrix in checkpoints: written as such, and read as rows, ranges and other columns."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trainer.checkpoint.ranges import Key, Ranges, of_rank_files, write_pieces
from trainer.errors import CheckpointError
from trainer.strategies.base import Shard
from trainer.strategies.tensor_parallel import Columns

MATRIX = torch.arange(6 * 10, dtype=torch.float32).view(6, 10)


def written(folder: Path, *cuts: int, rows: int = 6) -> Ranges:
    """The matrix in files of some columns each, from cut to cut, and in two parts of rows each."""
    paths = []
    for number, (low, high) in enumerate(pairwise(cuts)):
        pieces: list[tuple[str, Tensor]] = []
        for top, bottom in ((0, 4), (4, rows)):
            part = torch.cat([MATRIX, MATRIX], dim=1)[top:bottom, low:high].contiguous()
            pieces.append((str(Key("parameter", "w", top * 10 + low, 10)), part))
        path = folder / f"rank-{number:05}.safetensors"
        write_pieces(path, pieces)
        paths.append(path)
    return of_rank_files(paths)


def test_columns_are_read_as_anything(tmp_path: Path) -> None:
    store = written(tmp_path, 0, 3, 10)
    store.check_whole("parameter", "w", 60)
    assert torch.equal(store.whole("parameter", "w"), MATRIX.flatten())
    for start, end in ((0, 60), (7, 23), (31, 33), (59, 60)):
        out = torch.zeros(end - start)
        store.read("parameter", "w", start, out)
        assert torch.equal(out, MATRIX.flatten()[start:end])
    for low, high, top, bottom in ((0, 5, 0, 6), (2, 4, 1, 3), (9, 10, 5, 6), (4, 9, 2, 2)):
        part = torch.zeros((bottom - top) * (high - low))
        store.read("parameter", "w", top * 10 + low, part, Columns(high - low, 10))
        assert torch.equal(part, MATRIX[top:bottom, low:high].flatten())


def test_a_shard_of_columns_cuts_a_whole_tensor() -> None:
    shard = Shard(name="w", start=12, tensor=torch.zeros(6), columns=Columns(3, 10))
    assert torch.equal(shard.cut(MATRIX), MATRIX[1:3, 2:5].flatten())


def test_columns_that_overlap_or_lack_are_told(tmp_path: Path) -> None:
    for name, cuts, rows, said in (
        ("lacks", (0, 6), 6, "elements 6 to 10 are in no file"),
        ("short", (0, 5, 10), 5, "elements 50 to 60 are in no file"),
        ("wide", (0, 6, 12), 6, "are stored twice"),
    ):
        (tmp_path / name).mkdir()
        with pytest.raises(CheckpointError, match=said):
            written(tmp_path / name, *cuts, rows=rows).check_whole("parameter", "w", 60)
    (tmp_path / "read").mkdir()
    with pytest.raises(CheckpointError, match="in no file"):
        written(tmp_path / "read", 0, 6).read("parameter", "w", 0, torch.zeros(20))


@pytest.mark.parametrize("key", ["", "-1", "x", "0+", "+10", "9" * 400])
def test_a_piece_without_a_place_is_refused(key: str, tmp_path: Path) -> None:
    write_pieces(tmp_path / "rank-00000.safetensors", [(f"parameter/w/{key}", torch.zeros(6))])
    with pytest.raises(CheckpointError, match="is no range called kind/name/start"):
        of_rank_files([tmp_path / "rank-00000.safetensors"])
