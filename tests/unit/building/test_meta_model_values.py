"""Which models are filled after they are sharded, and what they get at once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from trainer import CheckpointError, Task
from trainer.building.meta_model import MetaModel
from trainer.task import Pretrained


class Built(Task):
    def build_model(self) -> nn.Module:
        raise AssertionError("the model is built by the test")


class Stored(Built):
    """Has a folder of pretrained files, which is empty."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def pretrained(self, model: nn.Module) -> Pretrained:
        names = {name: name for name, _ in model.named_parameters()}
        return Pretrained(folder=self.folder, names=names)


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))


@pytest.mark.parametrize("resumes", [False, True])
def test_buffers_get_their_values_before_the_model_is_sharded(resumes: bool) -> None:
    model = on_meta()
    made = MetaModel.of(model, Built(), 0, resumes=resumes)
    assert (made is None) == resumes, "a checkpoint has the parameters"
    assert not any(buffer.is_meta for buffer in model.buffers())
    assert all(parameter.is_meta for parameter in model.parameters())


def test_values_are_drawn_by_name_and_seed() -> None:
    made = MetaModel.of(on_meta(), Built(), 0, resumes=False)
    assert made is not None and made.sources == []
    drawn = dict(made.initial_values.draw(["0.weight", "1.bias"]))
    assert {name: tuple(value.shape) for name, value in drawn.items()} == {
        "0.weight": (3, 2),
        "1.bias": (3,),
    }
    [(_, again)] = made.initial_values.draw(["0.weight"])
    assert torch.equal(again, drawn["0.weight"])


def test_a_pretrained_folder_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError):
        MetaModel.of(on_meta(), Stored(tmp_path), 0, resumes=False)
