"""Models that are built on the meta device, and where they get their values from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from safetensors.torch import save_file
from torch import Tensor, nn

from trainer import CheckpointError, LaunchError, Pretrained, Run, TrainConfig, build
from trainer.building.meta_model import fill_buffers

DRAWN = ["0.bias", "0.weight", "1.bias", "1.weight"]


class Shifted(nn.Linear):
    """A layer with a buffer in files and one that no file holds; reset_parameters fills both."""

    def __init__(self) -> None:
        super().__init__(8, 8)
        self.register_buffer("kept", torch.empty(8))
        self.register_buffer("shift", torch.empty(8), persistent=False)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        if hasattr(self, "shift"):
            nn.init.constant_(self.kept, 2.0)
            nn.init.constant_(self.shift, 3.0)


@dataclass(frozen=True, kw_only=True)
class OnMeta(Plain):
    """A model without values, which a folder may have.

    Args:
        folder: of a pretrained model; "" for none.
        new: parameters that the folder does not have.
    """

    folder: str = ""
    new: tuple[str, ...] = ()

    def build_model(self) -> nn.Module:
        with torch.device("meta"):
            return nn.Sequential(Shifted(), nn.Linear(8, 1))

    def pretrained(self, model: nn.Module) -> Pretrained | None:
        return Pretrained(folder=self.folder, new=self.new) if self.folder else None


def built(folder: Path, task: Plain, **settings: Any) -> Run:
    config = TrainConfig(
        task="m:T", output_dir=str(folder), max_steps=2, micro_batch_size=8, **settings
    )
    return build(task, config)


def values(run: Run) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def written(folder: Path, *names: str) -> dict[str, Tensor]:
    """Write a model folder with these parameters, and return them."""
    shapes = {name: value.shape for name, value in OnMeta().build_model().state_dict().items()}
    tensors = {name: torch.randn(shapes[name]) for name in names}
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors")
    return tensors


def test_buffers_that_no_file_holds_have_values_before_the_model_is_sharded() -> None:
    for resumes in (False, True):
        model = OnMeta().build_model()
        fill = fill_buffers(model, OnMeta(), 0, resumes=resumes)
        assert (fill is None) == resumes, "a checkpoint has all parameters"
        assert model[0].shift.tolist() == [3.0] * 8  # type: ignore[index]
        assert all(parameter.is_meta for parameter in model.parameters())


def test_a_pretrained_folder_that_is_missing_is_refused_at_once(tmp_path: Path) -> None:
    task = OnMeta(folder=str(tmp_path / "gone"))
    with pytest.raises(CheckpointError, match="gone"):
        fill_buffers(task.build_model(), task, 0, resumes=False)
    assert fill_buffers(task.build_model(), task, 0, resumes=True) is None, "it is not read then"


def test_values_are_drawn_by_the_seed_of_the_training(tmp_path: Path) -> None:
    first = values(built(tmp_path / "first", OnMeta(), keep_last=0))
    again = values(built(tmp_path / "again", OnMeta(), keep_last=0))
    other = values(built(tmp_path / "other", OnMeta(), keep_last=0, seed=1))
    assert sorted(first) == [DRAWN[0], "0.kept", *DRAWN[1:]]
    assert first["0.kept"].tolist() == [2.0] * 8
    assert all(torch.equal(first[name], again[name]) for name in DRAWN)
    assert not any(torch.equal(first[name], other[name]) for name in DRAWN)


def test_a_pretrained_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "model", "0.bias", "0.kept", "0.weight", "1.bias")
    with pytest.raises(CheckpointError, match=r"1\.weight"):
        built(tmp_path / "run", OnMeta(folder=str(tmp_path / "model")), keep_last=0)


def test_a_buffer_that_nothing_initializes_is_left_to_files_or_named() -> None:
    with torch.device("meta"):
        models = [nn.Linear(2, 1), nn.Linear(2, 1)]
        for model in models:
            model.register_buffer("kept", torch.empty(2))
    assert fill_buffers(models[0], OnMeta(), 0, resumes=True) is None
    with pytest.raises(LaunchError, match="kept was built on the meta device"):
        fill_buffers(models[1], OnMeta(), 0, resumes=False)


def test_a_parameter_that_nothing_initializes_is_named() -> None:
    class Bare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.empty(2))

    class Task(Plain):
        def build_model(self) -> nn.Module:
            with torch.device("meta"):
                return Bare()

    model = Task().build_model()
    fill: Any = fill_buffers(model, Task(), 0, resumes=False)
    with pytest.raises(LaunchError, match="scale"):
        list(fill.args[0].draw({"scale"}))
