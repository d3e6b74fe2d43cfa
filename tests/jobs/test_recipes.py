"""The recipes of docs/recipes.md.

| promised | strategies and worlds | tests |
|---|---|---|
| A recipe trains, with the curve and the evaluation of one process | DDP, FSDP2 on 2; others (nightly) | test_a_recipe_has_the_curve_of_one_process |
| A teacher that moves and a queue continue from a checkpoint | one process | test_a_teacher_and_a_queue_continue |
| The items of a step are those of every rank | DDP on 2 | test_the_items_of_each_step_are_written |
| Of a distillation the student alone is exported | one process | test_the_student_alone_is_exported |
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from doc_pages import write_files
from launchers import ROOT, Job, json_lines, some_quick, trained
from safetensors.torch import load_file, save_file

RECIPES: dict[str, dict[str, Any]] = {
    "weighted": {"task": "weighted:Weighted"},
    "two_sources": {"task": "two_sources:TwoSources"},
    "distilled": {"task": "distilled:Distilled"},
    "truncated": {"task": "truncated:Truncated"},
    "contrastive": {"task": "contrastive:Contrastive", "lr": 0.01},
    "moving": {"task": "moving:Moving", "callbacks": ["moving:Follow"]},
    "moco": {"task": "moco:Moco", "callbacks": ["moco:Enqueue"], "lr": 0.003, "max_steps": 28},
    "items": {"task": "items:Numbered", "callbacks": ["items:WriteItems"]},
    "writing": {"task": "writing:Writing"},
    "detector": {"task": "detector:Detector"},
}
SETTINGS: dict[str, Any] = {
    "max_steps": 12,
    "global_batch_size": 32,
    "micro_batch_size": None,
    "drop_last": True,
    "log_every": 1,
    "save_every": 6,
    "keep_last": 5,
    "optimizer": "sgd",
    "lr": 0.1,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the page and a teacher."""
    folder = tmp_path_factory.mktemp("recipes")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for page in ("README.md", "docs/recipes.md"):
            write_files((ROOT / page).read_text())
    teacher = folder / "teacher.safetensors"
    torch.manual_seed(5)
    layers = {0: torch.nn.Linear(64, 256), 2: torch.nn.Linear(256, 10)}
    save_file(
        {
            f"{at}.{key}": value
            for at, layer in layers.items()
            for key, value in layer.state_dict().items()
        },
        teacher,
    )
    path = folder / "distilled.py"
    text = path.read_text()
    assert "runs/teacher/model/model.safetensors" in text
    path.write_text(text.replace("runs/teacher/model/model.safetensors", str(teacher)))
    return folder


@cache
def recipes(strategy: str, folder: Path) -> dict[str, Job]:
    """Train all recipes under a strategy."""
    configs = {name: {**SETTINGS, **settings} for name, settings in RECIPES.items()}
    return trained(strategy, folder / strategy, configs)


@pytest.mark.parametrize("strategy", some_quick("ddp", "fsdp"))
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_curve_of_one_process(name: str, strategy: str, folder: Path) -> None:
    done, alone = recipes(strategy, folder)[name], recipes("single", folder)[name]
    first = 4 if name == "moco" else 0  # until then the queue fills with keys
    assert len(alone.losses) >= 12 and sum(alone.losses[-3:]) < sum(alone.losses[first:][:3])
    bound = 1e-5 if name == "distilled" else 1e-6  # a loss of 0.003, a difference of logarithms
    assert done.losses == pytest.approx(alone.losses, rel=bound)
    assert done.evaluation == pytest.approx(alone.evaluation, rel=1e-6)


def test_a_teacher_and_a_queue_continue(folder: Path) -> None:
    """From the checkpoint in the middle, in a folder of its own."""
    whole = recipes("single", folder)
    configs = {}
    for name in ("moving", "moco"):
        middle = whole[name].output_dir / "checkpoints/step-00000006"
        configs[name] = {**SETTINGS, **RECIPES[name], "resume": str(middle)}
    for name, job in trained("single", folder / "continued", configs).items():
        assert job.losses == whole[name].losses[6:]


def test_the_items_of_each_step_are_written(folder: Path) -> None:
    alone, divided = (
        json_lines(recipes(strategy, folder)["items"].output_dir / "files/items.jsonl")
        for strategy in ("single", "ddp")
    )
    assert [row["step"] for row in divided] == list(range(1, 13))
    for one, two in zip(alone, divided, strict=True):
        [[items]], [[first], [second]] = one["items"], two["items"]
        assert first + second == items and len(items) == 32


def test_the_student_alone_is_exported(folder: Path) -> None:
    done = recipes("single", folder)["distilled"]
    exported = load_file(done.output_dir / "model/model.safetensors")
    assert sorted(exported) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert exported["0.weight"].shape == (64, 64)
