"""The recipes of docs/recipes.md.

| promised | strategies and worlds | tests |
|---|---|---|
| A recipe trains, with the curve of one process | DDP on 2; others (nightly) | test_a_recipe_has_the_curve_of_one_process |
| Of a distillation the student alone is exported | one process | test_the_student_alone_is_exported |
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from doc_pages import write_files
from launchers import ROOT, Job, run, some_quick
from safetensors.torch import load_file, save_file
from small_examples import words

RECIPES = {
    "weighted": "Weighted",
    "two_sources": "TwoSources",
    "distilled": "Distilled",
    "truncated": "Truncated",
    "contrastive": "Contrastive",
}
SETTINGS = (
    "max_steps: 12\nglobal_batch_size: 32\nmicro_batch_size: null\ndrop_last: true\nlog_every: 1\n"
    "optimizer: sgd\n"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files of the page, a config for each recipe, and a teacher."""
    folder = tmp_path_factory.mktemp("recipes")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        for page in ("README.md", "docs/recipes.md"):
            write_files((ROOT / page).read_text())
    for name, task in RECIPES.items():
        (folder / f"{name}.yaml").write_text(
            f"task: {name}:{task}\nlr: {0.01 if name == 'contrastive' else 0.1}\n{SETTINGS}"
        )
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


def trained(name: str, strategy: str, folder: Path) -> Job:
    output_dir = folder / f"{name}-{strategy}"
    if (output_dir / "summary.json").exists():
        return Job(code=0, out="", err="", output_dir=output_dir)
    config = ["--config", str(folder / f"{name}.yaml")]
    return run([*words(strategy, "examples/train.py"), *config], output_dir).ok()


@pytest.mark.parametrize("strategy", some_quick("ddp"))
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_has_the_curve_of_one_process(name: str, strategy: str, folder: Path) -> None:
    done, alone = trained(name, strategy, folder), trained(name, "single", folder)
    assert done.plan["world_size"] == 2 and len(alone.losses) == 12
    assert done.losses == pytest.approx(alone.losses, rel=1e-5)
    assert sum(alone.losses[-3:]) < sum(alone.losses[:3])


def test_the_student_alone_is_exported(folder: Path) -> None:
    exported = load_file(
        trained("distilled", "single", folder).output_dir / "model/model.safetensors"
    )
    assert sorted(exported) == ["0.bias", "0.weight", "2.bias", "2.weight"]
    assert exported["0.weight"].shape == (64, 64)
