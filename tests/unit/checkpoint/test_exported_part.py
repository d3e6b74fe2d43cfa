"""A model of named parts, of which the task exports one: names, configuration, frozen parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from launchers import json_in
from safetensors.torch import load_file, save_file
from torch import nn
from whole_model import build_whole

from trainer import CheckpointError, ConfigError, Data, Pretrained, Task, TrainConfig, Trainer
from trainer.commands import cli


class Guided(nn.Module):
    """A student, a frozen teacher, and a scale that is trained beside both."""

    def __init__(self, build: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.student, self.teacher = build(), build().requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Any = None, **inputs: Any) -> Any:
        if x is None:  # the inputs of the student alone
            return self.student(**inputs)
        student, teacher = (part(input_ids=x).logits for part in (self.student, self.teacher))
        return self.scale * student - teacher


@dataclass(frozen=True, kw_only=True)
class Guide(Task):
    """Args: blank: built on the meta device, and read from a folder for each part."""

    exported: ClassVar[str] = "student"

    shift: float = 0.0
    blank: str = ""

    def build_data(self) -> Data:
        ids = torch.randint(0, 40, (8, 6), generator=torch.Generator().manual_seed(3))
        return Data(train=[{"x": row} for row in ids])

    def build_model(self) -> nn.Module:
        from transformers import AutoModelForCausalLM, LlamaConfig

        config = LlamaConfig(
            vocab_size=40,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            tie_word_embeddings=True,
        )
        with torch.device("meta" if self.blank else "cpu"):
            model: Any = Guided(lambda: AutoModelForCausalLM.from_config(config))
        for name, parameter in model.student.named_parameters():
            parameter.requires_grad_("embed" not in name)
        if not self.blank:
            with torch.no_grad():
                model.teacher.model.norm.weight += self.shift
        return model  # type: ignore[no-any-return]

    def pretrained(self, model: nn.Module) -> list[Pretrained]:
        folder = Path(self.blank)
        names = {"first": "model.norm.weight"}
        student = Pretrained(folder=folder / "student", part="student")
        teacher = Pretrained(folder=folder / "teacher", part="teacher", names=names)
        return [student, teacher, Pretrained(folder=folder / "scale", names={"s": "scale"})]

    def initialize(self, model: Any, module: nn.Module) -> None:
        super().initialize(model.student, module)

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        return model(batch["x"]).square().mean()


def training(folder: Path, task: Guide, **settings: Any) -> Trainer:
    keys = {"max_steps": 4, "save_every": 2, "micro_batch_size": 4, "lr": 0.01, **settings}
    return Trainer(task, TrainConfig(task="guide:Guide", output_dir=str(folder), **keys))


def finished(folder: Path, task: Guide, **settings: Any) -> Trainer:
    trainer = training(folder, task, **settings)
    trainer.fit()
    trainer.close()
    return trainer


def test_the_export_has_the_names_and_the_configuration_of_the_part(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    trained: Any = finished(tmp_path / "run", Guide()).run.model
    folder = tmp_path / "run/model"
    loaded: Any = AutoModelForCausalLM.from_pretrained(folder)
    torch.testing.assert_close(loaded.state_dict(), trained.student.state_dict(), rtol=0, atol=0)
    assert {path.name for path in folder.iterdir()} >= {"config.json", "generation_config.json"}

    last = max((tmp_path / "run/checkpoints").glob("step-*"))
    again = tmp_path / "again"
    assert cli.main(["export", str(last), "--to", str(again)]) == 0
    ours, theirs = (at / "model.safetensors" for at in (again, folder))
    assert ours.read_bytes() == theirs.read_bytes()
    assert json_in(again / "config.json")["model_type"] == "llama"

    stored = {name for path in last.glob("rank-*.safetensors") for name in load_file(path)}
    names = {name.split("/")[1] for name in stored if not name.startswith("rng.")}
    assert names > {"scale", "student.model.embed_tokens.weight"}, "trained, or in the product"
    assert not any(name.startswith("teacher.") for name in names)

    new = training(tmp_path / "new", Guide(), weights=str(folder))
    model: Any = new.run.model
    assert torch.equal(model.student.model.norm.weight, trained.student.model.norm.weight)
    assert model.scale.item() == 1.0 and trained.scale.item() != 1.0
    new.close()


def test_a_run_goes_on_beside_the_same_frozen_part_only(tmp_path: Path) -> None:
    whole = finished(tmp_path / "whole", Guide())
    finished(tmp_path / "half", Guide(), stop_at=2)
    resumed = finished(tmp_path / "half", Guide(), resume="auto")
    ours, theirs = resumed.run.model.state_dict(), whole.run.model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    with pytest.raises(ConfigError, match=r'base_weights: "[0-9a-f]{16}" -> "[0-9a-f]{16}"'):
        training(
            tmp_path / "half",
            Guide(shift=0.5),
            max_steps=6,
            resume="auto",
        )


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Files of each part of the model, with other names in one of them."""
    model: Any = Guide().build_model()
    for part in ("student", "teacher"):
        (tmp_path / part).mkdir()
        tensors = {name: torch.randn_like(p) for name, p in getattr(model, part).named_parameters()}
        if part == "teacher":
            tensors["first"] = tensors.pop("model.norm.weight")
        save_file(tensors, tmp_path / part / "model.safetensors")
    (tmp_path / "scale").mkdir()
    save_file({"s": torch.full((1,), 3.0)}, tmp_path / "scale/model.safetensors")
    return tmp_path


def test_each_part_is_read_from_its_own_folder(folders: Path) -> None:
    task = Guide(blank=str(folders))
    prepared = training(folders / "run", task)
    of_run: Any = prepared.run.model
    for model in (of_run, build_whole(task)):
        student, teacher = (
            load_file(folders / p / "model.safetensors") for p in ("student", "teacher")
        )
        assert torch.equal(model.teacher.model.norm.weight, teacher["first"])
        assert torch.equal(model.student.model.norm.weight, student["model.norm.weight"])
        assert model.scale.item() == 3.0
    [notice] = [line for line in prepared.run.setup.notices if line.startswith("starts with")]
    assert all(str(folders / part) in notice for part in ("student", "teacher", "scale"))
    prepared.close()


def test_a_tensor_that_no_folder_has_is_named(folders: Path) -> None:
    (folders / "scale/model.safetensors").unlink()
    save_file({"other": torch.ones(1)}, folders / "scale/model.safetensors")
    with pytest.raises(CheckpointError, match="scale: does not hold this model: scale is missing"):
        training(folders / "run", Guide(blank=str(folders)))
