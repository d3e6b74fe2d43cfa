"""What reading ranges costs."""

from __future__ import annotations

import sys
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import checkpoint, fit

from trainer.checkpoint import restore
from trainer.checkpoint.ranges import Key, Ranges, of_rank_files, write_pieces
from trainer.checkpoint.safetensors_io import read_header
from trainer.errors import CheckpointError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_a_range_is_read_to_where_it_belongs(dtype: torch.dtype, tmp_path: Path) -> None:
    values = torch.arange(2**20).to(dtype)
    write_pieces(tmp_path / "rank-00000.safetensors", [(str(Key("parameter", "weight")), values)])
    store = of_rank_files([tmp_path / "rank-00000.safetensors"])
    weight = torch.nn.Parameter(
        torch.zeros(2**20 + 3, dtype=dtype), requires_grad=dtype.is_floating_point
    )
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
    pieces = [
        ("parameter/w/0", torch.zeros(3)),
        ("parameter/w/3", torch.zeros(3, dtype=torch.int32)),
    ]
    write_pieces(tmp_path / "rank-00000.safetensors", pieces)
    with pytest.raises(CheckpointError, match=r"parameter w: is stored in several dtypes"):
        of_rank_files([tmp_path / "rank-00000.safetensors"])


@pytest.mark.usefixtures("fresh_accelerate")
def test_a_checkpoint_is_read_from_its_beginning_to_its_end(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In a file that stays open: what is read in another order takes more than twice the time from
    a disk.
    """
    fit(tmp_path / "run", max_steps=4)
    path = checkpoint(tmp_path / "run", 4) / "rank-00000.safetensors"
    stored = [key for key in read_header(path) if key.startswith(("parameter", "optimizer.exp"))]
    asked: list[str] = []
    opened: list[str] = []
    read = Ranges.read

    def noted(store: Ranges, kind: str, name: str, *rest: Any) -> None:
        asked.append(f"{kind}/{name}/0")
        read(store, kind, name, *rest)

    def note_open(event: str, args: tuple[Any, ...]) -> None:
        if event == "open" and listening and str(args[0]) == str(path):
            opened.append(str(args[0]))

    listening = False
    sys.addaudithook(note_open)
    monkeypatch.setattr(Ranges, "read", noted)
    load = restore._load_tensors

    def loaded(*args: Any, **more: Any) -> Any:
        nonlocal listening
        listening = True
        try:
            return load(*args, **more)
        finally:
            listening = False

    monkeypatch.setattr(restore, "_load_tensors", loaded)
    fit(tmp_path / "run", max_steps=6, resume="auto")
    assert [key for key in asked if key in stored] == stored and len(stored) > 6
    # Once for the ranges; values (Adam's step, one a parameter) and buffers are few bytes, each by
    # itself.
    values = [key for key in read_header(path) if key.startswith(("optimizer.step", "buffer"))]
    assert len(opened) <= 1 + len(values)
