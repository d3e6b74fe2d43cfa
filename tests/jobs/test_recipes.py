"""The recipes of docs/recipes.md.

| promised | strategies and worlds | tests |
|---|---|---|
| A recipe trains, with the curve and the evaluation of one process | DDP, FSDP2 on 2; others (nightly) | test_a_recipe_has_the_curve_of_one_process |
| A teacher that moves and a queue continue from a checkpoint | one process | test_a_teacher_and_a_queue_continue |
| The items of a step are those of every rank | DDP on 2 | test_the_items_of_each_step_are_written |
| Of a distillation the student alone is exported | one process | test_the_student_alone_is_exported |
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from doc_pages import write_files
from launchers import ROOT, Job, json_in, json_lines, ranks, some_quick
from safetensors.torch import load_file, save_file

RECIPES: dict[str, tuple[str, dict[str, Any]]] = {
    "weighted": ("Weighted", {}),
    "two_sources": ("TwoSources", {}),
    "distilled": ("Distilled", {}),
    "truncated": ("Truncated", {}),
    "contrastive": ("Contrastive", {"lr": 0.01}),
    "moving": ("Moving", {"callbacks": ["moving:Follow"]}),
    "moco": ("Moco", {"callbacks": ["moco:Enqueue"], "lr": 0.003, "max_steps": 28}),
    "items": ("Numbered", {"callbacks": ["items:WriteItems"]}),
    "writing": ("Writing", {}),
    "detector": ("Detector", {}),
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
    """A folder with the files of the page, a config for each recipe, and a teacher."""
    folder = tmp_path_factory.mktemp("recipes")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for page in ("README.md", "docs/recipes.md"):
            write_files((ROOT / page).read_text())
    for name, (task, settings) in RECIPES.items():
        lines = {"task": f"{name}:{task}", **SETTINGS, **settings}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(lines))
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


def train(strategy: str, runs: dict[Path, Path], *settings: str) -> None:
    """Train configs into folders, one after the other, in one job."""
    told = {
        "accel_config": f"accel_configs/{strategy}.yaml",
        "runs": {str(config): str(output_dir) for config, output_dir in runs.items()},
        "settings": settings,
    }
    words = ["tests/workers/recipes.py", json.dumps(told)]
    done = ranks(words, 0 if strategy == "single" else 2)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


@cache
def trained(strategy: str, folder: Path) -> Path:
    """Return the folder with the runs of all recipes under a strategy."""
    train(strategy, {folder / f"{name}.yaml": folder / strategy / name for name in RECIPES})
    return folder / strategy


def job(name: str, strategy: str, folder: Path) -> Job:
    return Job(code=0, out="", err="", output_dir=trained(strategy, folder) / name)


@pytest.mark.parametrize("strategy", some_quick("ddp", "fsdp"))
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_curve_of_one_process(name: str, strategy: str, folder: Path) -> None:
    done, alone = job(name, strategy, folder), job(name, "single", folder)
    assert done.plan["world_size"] == 2 and done.plan["strategy"] == strategy
    first = 4 if name == "moco" else 0  # until then the queue fills with keys
    assert len(alone.losses) >= 12 and sum(alone.losses[-3:]) < sum(alone.losses[first:][:3])
    bound = 1e-5 if name == "distilled" else 1e-6  # a loss of 0.003, a difference of logarithms
    assert done.losses == pytest.approx(alone.losses, rel=bound)

    ours, theirs = (json_in(one.output_dir / "summary.json")["evaluation"] for one in (done, alone))
    assert ours == pytest.approx(theirs, rel=1e-6)


def test_a_teacher_and_a_queue_continue(folder: Path) -> None:
    """From the checkpoint in the middle, in a folder of its own."""
    whole = trained("single", folder)
    continued = folder / "continued"
    middle = "checkpoints/step-00000006"
    for name in ("moving", "moco"):
        train(
            "single",
            {folder / f"{name}.yaml": continued / name},
            "--resume",
            f"{whole / name / middle}",
        )
        losses = Job(code=0, out="", err="", output_dir=continued / name).losses
        assert losses == job(name, "single", folder).losses[6:]


def test_the_items_of_each_step_are_written(folder: Path) -> None:
    paths = (
        trained(strategy, folder) / "items/files/items.jsonl" for strategy in ("single", "ddp")
    )
    alone, divided = map(json_lines, paths)
    assert [row["step"] for row in divided] == list(range(1, 13))
    for one, two in zip(alone, divided, strict=True):
        [[items]], [[first], [second]] = one["items"], two["items"]
        assert first + second == items and len(items) == 32


def test_the_student_alone_is_exported(folder: Path) -> None:
    exported = load_file(trained("single", folder) / "distilled" / "model/model.safetensors")
    assert sorted(exported) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert exported["0.weight"].shape == (64, 64)
