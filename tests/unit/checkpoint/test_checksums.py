"""Checksums of weights, and files whose values a model would round."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from one_process import fit
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer import CheckpointError, Data, Pretrained, Task
from trainer.checkpoint.checksums import content_sum

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@dataclass(frozen=True, kw_only=True)
class FromFiles(Task):
    folder: str
    frozen: str = "float32"  # the dtype of what does not learn

    def build_data(self) -> Data:
        return Data(train=torch.randn(8, 3))

    def build_model(self) -> nn.Module:
        with torch.device("meta"):
            model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2))
        model[0].to(getattr(torch, self.frozen)).requires_grad_(False)
        return model

    def pretrained(self, model: nn.Module) -> Pretrained:
        return Pretrained(folder=self.folder)

    def training_step(self, model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model[1](model[0](batch.to(model[0].weight.dtype)).float()).mean()  # type: ignore[index]
        return loss


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    tensors = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2)).state_dict()
    (tmp_path / "given").mkdir()
    save_file(
        {name: tensor.bfloat16() for name, tensor in tensors.items()},
        tmp_path / "given" / "model.safetensors",
    )
    return tmp_path / "given"


def test_a_dtype_that_would_round_the_files_is_named(folder: Path, tmp_path: Path) -> None:
    rule = r"given: 0\.(weight|bias) is stored in bfloat16, which torch.float16 would round"
    with pytest.raises(CheckpointError, match=rule):
        fit(
            tmp_path / "run",
            FromFiles(folder=str(folder), frozen="float16"),
            mixed_precision="bf16",
        )


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_checksums_of_parts_add_up_wherever_they_are_cut(dtype: torch.dtype) -> None:
    values = torch.randn(1_200_007).to(dtype)
    whole = content_sum(values, 0, dtype)
    for cuts in ([1], [3, 5, 6], [600_001, 600_002], [0, 1_200_007]):
        ends = [0, *cuts, len(values)]
        parts = (content_sum(values[low:high], low, dtype) for low, high in pairwise(ends))
        assert sum(parts) % (1 << 64) == whole


def test_a_flipped_bit_and_two_swapped_values_change_the_checksum() -> None:
    values = torch.randn(64).bfloat16()
    whole = content_sum(values, 0, torch.bfloat16)
    for bit in range(16):
        flipped = values.clone()
        flipped.view(torch.int16)[11] ^= torch.tensor(
            1 << bit if bit < 15 else -(1 << 15), dtype=torch.int16
        )
        assert content_sum(flipped, 0, torch.bfloat16) != whole, bit
    swapped = values[[1, 0, *range(2, 64)]]
    assert (
        content_sum(swapped, 0, torch.bfloat16) != whole != content_sum(values, 4, torch.bfloat16)
    )
