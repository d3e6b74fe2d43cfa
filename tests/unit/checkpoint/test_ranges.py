"""Ranges of tensors in files: whatever pieces hold them, any range can be read."""

from __future__ import annotations

import itertools
import tracemalloc
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer import CheckpointError
from trainer.checkpoint import ranges
from trainer.checkpoint.ranges import of_model_folder, of_rank_files
from trainer.checkpoint.safetensors_io import DTYPES, Key, write_pieces


@settings(max_examples=60)
@given(data=st.data(), size=st.integers(1, 200), dtype=st.sampled_from(sorted(DTYPES)))
def test_any_range_of_any_pieces(
    data: st.DataObject, size: int, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("ranges")
    values = torch.randint(0, 2, (size,)).to(DTYPES[dtype])
    cuts = sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=5))})
    paths = []
    for number, (low, high) in enumerate(itertools.pairwise(cuts)):
        paths.append(folder / f"{number}")
        write_pieces(
            paths[-1], [(str(Key(kind="k", name="a/b.c", start=low)), values[low:high].clone())]
        )
    whole = of_rank_files(data.draw(st.permutations(paths)))
    low, high = sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size))))
    out = torch.empty(high - low, dtype=DTYPES[dtype])
    whole.read("k", "a/b.c", low, out)
    assert torch.equal(out, values[low:high])
    assert whole.whole("k", "a/b.c").numel() == size


def test_a_model_folder_is_read_by_range_as_well(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    first, second = torch.randn(4, 3), torch.randn(5).to(torch.bfloat16)
    save_file({"a.weight": first}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": second}, tmp_path / "model-00002-of-00002.safetensors")
    folder, entries = of_model_folder(tmp_path)
    assert {name: entry.shape for name, entry in entries.items()} == {"a.weight": (4, 3), "b": (5,)}
    out = torch.empty(5)
    folder.read("parameter", "a.weight", 4, out)
    assert torch.equal(out, first.flatten()[4:9])
    with pytest.raises(CheckpointError, match="parameter b: elements up to 6 are in no file"):
        folder.read("parameter", "b", 1, out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_a_range_is_read_to_where_it_belongs(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "CHUNK", 2**16)
    values = torch.arange(2**20).to(dtype)
    write_pieces(tmp_path / "rank-00000.safetensors", [(str(Key("parameter", "weight")), values)])
    store = of_rank_files([tmp_path / "rank-00000.safetensors"])
    weight = torch.zeros(2**20 + 3, dtype=dtype)
    tracemalloc.start()
    store.read("parameter", "weight", 5, weight[1 : 2**20 - 6])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert torch.equal(weight[1 : 2**20 - 6], values[5 : 2**20 - 2])
    assert not weight[0] and not weight[2**20 - 6 :].any(), "and nowhere else"
    assert peak < 2**18, "some elements at a time"
    strided, wide = torch.zeros(2**10, 2, dtype=dtype), torch.zeros(2**10, dtype=torch.float64)
    for out in (strided[:, 0], wide):  # which do not lie as the file does
        store.read("parameter", "weight", 7, out)
        assert torch.equal(out.to(dtype), values[7 : 7 + 2**10])


def test_a_tensor_that_begins_far_behind_its_file_asks_for_no_memory(tmp_path: Path) -> None:
    write_pieces(tmp_path / "rank-00000.safetensors", [("user/seen/" + "9" * 18, torch.zeros(3))])
    with pytest.raises(CheckpointError, match="user seen: elements are in no file"):
        of_rank_files([tmp_path / "rank-00000.safetensors"])


def test_pieces_that_overlap_or_are_missing_are_named(tmp_path: Path) -> None:
    for starts, said in (
        ((0, 6), "parameter w: elements are in no file"),
        ((0, 3), "parameter w: 6 elements are stored instead of 9"),
        ((0, 2, 5), "parameter w: elements are in no file or stored twice"),
    ):
        path = tmp_path / f"{len(said)}.safetensors"
        write_pieces(path, [(f"parameter/w/{start}", torch.zeros(3)) for start in starts])
        with pytest.raises(CheckpointError, match=said):
            of_rank_files([path]).check_whole("parameter", "w", 9)


@pytest.mark.parametrize("key", ["", "-1", "x", "0+", "+10", "9" * 400])
def test_a_piece_without_a_place_is_refused(key: str, tmp_path: Path) -> None:
    write_pieces(tmp_path / "rank-00000.safetensors", [(f"parameter/w/{key}", torch.zeros(6))])
    with pytest.raises(CheckpointError, match="is no range called kind/name/start"):
        of_rank_files([tmp_path / "rank-00000.safetensors"])
