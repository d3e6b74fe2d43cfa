"""What ``trainer evaluate`` finds in the folder of a run, whatever is left of it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from one_process import checkpoint, fit

from trainer import CheckpointError, ConfigError
from trainer.commands.evaluated_model import find_model

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    fit(folder)
    return folder


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    """A copy of a finished run of eight steps."""
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


def test_the_model_of_a_run_knows_its_steps(run: Path) -> None:
    found = find_model(run)
    assert (found.weights, found.name, found.run) == (run / "model", "model", run)
    assert (found.step, found.samples, found.notices) == (8, find_model(run / "model").samples, ())
    assert found.samples > 0 and found.plan["strategy"] == "single"


def test_a_run_that_went_on_says_that_model_is_older(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps({**summary, "steps": 4}))
    assert find_model(run).notices == ("the run went on after model/: it has step-00000008",)


def test_damaged_checkpoints_are_passed_over_by_latest_and_named_otherwise(run: Path) -> None:
    (checkpoint(run, 8) / "state.json").unlink()
    assert find_model(run, checkpoint="latest").name == "step-00000006"
    with pytest.raises(CheckpointError, match=r"step-00000008: state.json is missing"):
        find_model(run, checkpoint="step-8")
    for step in (2, 4, 6):
        (checkpoint(run, step) / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint can be read .step-00000008: state"):
        find_model(run, checkpoint="latest")


def test_what_a_run_does_not_have(run: Path) -> None:
    with pytest.raises(ConfigError, match="holds no best/: a run keeps one where best_metric is"):
        find_model(run, best=True)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(CheckpointError, match="holds no checkpoints"):
        find_model(run, checkpoint="latest")
    shutil.rmtree(run / "model")
    with pytest.raises(ConfigError, match=r"has not ended, .* it has no checkpoint yet"):
        find_model(run)


def test_a_checkpoint_that_was_moved_belongs_to_no_run(run: Path, tmp_path: Path) -> None:
    moved = tmp_path / "step-00000004"
    shutil.copytree(checkpoint(run, 4), moved)
    found = find_model(moved)
    assert (found.run, found.config, found.step, found.plan) == (None, None, 4, {})
