"""A model is exported in the dtype of the files that it started from, or in the one that is asked
for.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import nn

from trainer.checkpoint.export import ModelFile, export_dtypes, save_config
from trainer.task import Pretrained


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.register_buffer("count", torch.zeros((), dtype=torch.long))


def test_each_tensor_has_the_dtype_of_its_file_unless_another_is_asked_for(tmp_path: Path) -> None:
    model = Small()
    stored = {
        "body.weight": torch.ones(2, 2).bfloat16(),
        "first.head": torch.ones(2, 2),
        "count": torch.ones(()),
    }
    save_file(stored, tmp_path / "model.safetensors")
    source = Pretrained(folder=tmp_path, names={"first.head": "head.weight"})
    assert export_dtypes(model, "auto", source) == {"body.weight": torch.bfloat16}
    assert export_dtypes(model, "auto", None) == {}
    assert export_dtypes(model, "auto", Pretrained(folder=tmp_path / "gone")) == {}
    both = {"body.weight": torch.float16, "head.weight": torch.float16}
    assert export_dtypes(model, "float16", source) == both

    form = ModelFile.of(model, export_dtypes(model, "auto", source))
    assert form.dtype("body.weight", torch.float32) == form.most_of() == torch.bfloat16
    assert (
        form.dtype("head.weight", torch.float32) == torch.float32
        and ModelFile.of(model).most_of() is None
    )


def test_the_configuration_says_the_dtype_of_the_file_and_the_models_own_stays(
    tmp_path: Path,
) -> None:
    from transformers import LlamaConfig

    model = Small()
    model.config = LlamaConfig(hidden_size=8, num_attention_heads=1)  # type: ignore[assignment]
    model.config.dtype = torch.float32  # type: ignore[union-attr]
    save_config(model, tmp_path, torch.bfloat16)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    assert model.config.dtype == torch.float32  # type: ignore[union-attr]
