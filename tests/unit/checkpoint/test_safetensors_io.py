"""Safetensors files: ours open with the library, and theirs with ours."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from trainer import CheckpointError
from trainer.checkpoint.safetensors_io import DTYPES, raw, read_header


@pytest.mark.parametrize("code", sorted(DTYPES))
def test_each_tensor_is_where_its_header_says(code: str, tmp_path: Path) -> None:
    tensors = {
        "a": torch.randint(0, 2, (3, 2)).to(DTYPES[code]),
        "b": torch.ones(4),
        "none": torch.zeros(0, 2),
    }
    save_file(tensors, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    for name, entry in read_header(tmp_path / "file").items():
        assert entry.shape == tensors[name].shape and entry.dtype == tensors[name].dtype
        stored = content[entry.begin : entry.begin + tensors[name].nbytes]
        assert stored == (bytes(raw(tensors[name])) if tensors[name].numel() else b"")


def test_a_cut_file_is_refused(tmp_path: Path) -> None:
    save_file({"w": torch.ones(100)}, tmp_path / "file")
    (tmp_path / "file").write_bytes((tmp_path / "file").read_bytes()[:-1])
    with pytest.raises(CheckpointError, match="no readable safetensors file"):
        read_header(tmp_path / "file")
