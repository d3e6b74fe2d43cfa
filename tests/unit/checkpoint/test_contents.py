"""Tensors of all sorts in checkpoints and exports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import checkpoint, fit, steps
from refusing import refused
from resuming import Odd
from safetensors.torch import load_file
from torch import Tensor, nn

from trainer import CheckpointError, Run
from trainer.commands import cli


@dataclass(frozen=True, kw_only=True)
class Typed(Odd):
    """Has a tensor of another dtype."""

    dtype: str = "complex64"
    learns: bool = False

    def build_model(self) -> nn.Module:
        model, tensor = super().build_model(), torch.ones(3).to(getattr(torch, self.dtype))
        if self.learns:
            model.register_parameter("typed", nn.Parameter(tensor))
        else:
            model.register_buffer("typed", tensor)
        return model


@pytest.mark.parametrize("keep_last", [0, 4])
@pytest.mark.parametrize("task", [Typed(), Typed(learns=True)], ids=["buffer", "parameter"])
def test_complex_tensors_are_refused_by_name(task: Odd, keep_last: int, tmp_path: Path) -> None:
    save_every = 2 if keep_last else None
    match = "typed: safetensors has no complex64; take another dtype"
    refused(tmp_path, match, task, keep_last=keep_last, save_every=save_every)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2"])
def test_rare_dtypes_are_saved_and_exported(
    dtype: str, goes_on: Callable[..., tuple[Run, Run]], tmp_path: Path
) -> None:
    goes_on(Typed(dtype=dtype), at=2, max_steps=4)
    assert (
        cli.main(["export", str(checkpoint(tmp_path / "new", 4)), "--to", str(tmp_path / "out")])
        == 0
    )
    typed = load_file(tmp_path / "out/model.safetensors")["typed"]
    assert str(typed.dtype) == f"torch.{dtype}" and typed.to(torch.float32).tolist() == [1, 1, 1]


class Growing(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.register_buffer("bank", torch.zeros(0))

    def forward(self, ids: Tensor) -> Tensor:
        self.bank = torch.cat([self.bank, torch.ones(1)])
        out: Tensor = self.inner(ids)
        return out


class Grows(Odd):
    def build_model(self) -> nn.Module:
        return Growing(super().build_model())


@pytest.mark.parametrize(
    "settings", [{}, {"keep_last": 0, "save_every": None}, {"on_save_error": "continue"}], ids=str
)
def test_a_buffer_that_changes_its_shape_is_named(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"buffer bank was built with shape \(0,\) and has \(\d,\) now"
    ) as caught:
        fit(tmp_path, Grows(), **settings)
    assert str(caught.value).count("bank") == 1 and "\n" not in str(caught.value)
    assert not [name for name in ("model", ".model.part") if (tmp_path / name).exists()]
    assert steps(tmp_path) == [] and (
        "checkpoints" in settings or not list(tmp_path.glob("checkpoints/.*"))
    )


class Empty(Odd):
    """Has a parameter and a buffer without elements."""

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.register_parameter("nothing", nn.Parameter(torch.zeros(0, 4)))
        model.register_buffer("none", torch.zeros(0))
        return model


def test_tensors_without_elements_are_exported_and_resumed(
    goes_on: Callable[..., tuple[Run, Run]], tmp_path: Path
) -> None:
    goes_on(Empty())
    last = checkpoint(tmp_path / "run", 8)
    fit(tmp_path / "same", Empty(), max_steps=1, weights=str(last))
    assert cli.main(["export", str(last), "--to", str(tmp_path / "model")]) == 0
    ours, theirs = (tmp_path / name / "model.safetensors" for name in ("model", "run/model"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert load_file(ours)["nothing"].shape == (0, 4)
