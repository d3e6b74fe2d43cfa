"""The private name of safetensors: a release that removes it is named here."""

from __future__ import annotations

from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import save_file

from trainer.checkpoint.safetensors_io import header, raw, read_header
from trainer.private.safetensors import DTYPES

SAFETENSORS = f"safetensors {safetensors.__version__}"


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "bfloat16", "float8_e4m3fn", "uint16", "bool"]
)
def test_files_are_those_of_the_library(dtype: str, tmp_path: Path) -> None:
    assert hasattr(safetensors.torch, "_TYPES"), f"{SAFETENSORS} has no safetensors.torch._TYPES"
    tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    assert tensor.dtype in DTYPES.values(), f"_TYPES of {SAFETENSORS} has other dtypes"
    save_file({"a": tensor}, tmp_path / "theirs", {"format": "pt"})
    ours = header([("a", (2, 3), tensor.dtype)]) + raw(tensor)
    assert (tmp_path / "theirs").read_bytes() == ours
    assert read_header(tmp_path / "theirs")["a"].dtype == tensor.dtype
