"""What reading ranges costs."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import torch

from trainer.checkpoint.ranges import Key, of_rank_files, write_pieces
from trainer.errors import CheckpointError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_a_range_is_read_to_where_it_belongs(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.arange(2**20).to(dtype)
    write_pieces(tmp_path / "rank-00000.safetensors", [(str(Key("parameter", "weight")), values)])
    store = of_rank_files([tmp_path / "rank-00000.safetensors"])
    weight = torch.nn.Parameter(torch.zeros(2**20 + 3, dtype=dtype), requires_grad=dtype.is_floating_point)
    tracemalloc.start()
    store.read("parameter", "weight", 5, weight[1 : 2**20 - 6])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert torch.equal(weight[1 : 2**20 - 6], values[5 : 2**20 - 2])
    assert not weight[0] and not weight[2**20 - 6 :].any(), "and nowhere else"
    assert peak < 2**18, "no buffer between"
    strided, wide = torch.zeros(2**10, 2, dtype=dtype), torch.zeros(2**10, dtype=torch.float64)
    for out in (strided[:, 0], wide):  # which do not lie as the file does
        store.read("parameter", "weight", 7, out)
        assert torch.equal(out.to(dtype), values[7 : 7 + 2**10])


def test_a_tensor_that_begins_far_behind_its_file_asks_for_no_memory(tmp_path: Path) -> None:
    write_pieces(tmp_path / "rank-00000.safetensors", [("user/seen/" + "9" * 18, torch.zeros(3))])
    store = of_rank_files([tmp_path / "rank-00000.safetensors"])
    with pytest.raises(CheckpointError, match=r"user seen: elements 0 to 9+ are in no file"):
        store.whole("user", "seen")


def test_pieces_of_one_tensor_in_several_dtypes_are_refused(tmp_path: Path) -> None:
    pieces = [("parameter/w/0", torch.zeros(3)), ("parameter/w/3", torch.zeros(3, dtype=torch.int32))]
    write_pieces(tmp_path / "rank-00000.safetensors", pieces)
    with pytest.raises(CheckpointError, match=r"parameter w: stands there in several dtypes"):
        of_rank_files([tmp_path / "rank-00000.safetensors"])
