"""A checkpoint by its path, and weights alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from one_process import checkpoint, fit, log_of, lose, losses
from other_models import Smaller, Turned, Wider
from resuming import Odd

from trainer import CheckpointError, ConfigError
from trainer.checkpoint import discover, store

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def test_a_path_is_that_checkpoint_or_an_error(tmp_path: Path) -> None:
    run, branch = tmp_path / "run", tmp_path / "branch"
    fit(run)
    four = run / "checkpoints" / store.name_of(4)
    fit(branch, resume=str(four))
    assert losses(branch) == {step: loss for step, loss in losses(run).items() if step > 4}
    with pytest.raises(
        ConfigError, match=r"continues to step-00000008; give another output_dir to branch off"
    ):
        fit(run, resume=str(four))
    lose(run, 8, 6)
    fit(run, resume=str(four))  # the newest of its own run: that run goes on
    assert list(losses(run)) == list(range(1, 9))
    with pytest.raises(
        ConfigError,
        match=r"holds checkpoints and is none; name one of step-00000008, .*resume: auto",
    ):
        fit(tmp_path / "other", resume=str(run))
    with pytest.raises(CheckpointError, match="nowhere: does not exist"):
        fit(tmp_path / "other", resume=str(tmp_path / "nowhere"))
    (four / discover.STATE).write_text("{}")
    with pytest.raises(
        CheckpointError, match=r"step-00000004: state.json has 2 bytes instead of \d+; resume: auto"
    ):
        fit(tmp_path / "other", resume=str(four))


def test_a_run_that_saves_nothing_goes_on_with_the_optimizer_of_the_checkpoint(
    tmp_path: Path,
) -> None:
    fit(tmp_path / "run")
    four = tmp_path / "run" / "checkpoints" / store.name_of(4)
    fit(tmp_path / "on", resume=str(four), keep_last=0, save_every=None)
    assert losses(tmp_path / "on") == {
        step: loss for step, loss in losses(tmp_path / "run").items() if step > 4
    }


def test_weights_alone_start_a_new_run(tmp_path: Path) -> None:
    fit(tmp_path / "run")
    for weights in (
        tmp_path / "run" / "model",
        tmp_path / "run" / "checkpoints" / store.name_of(8),
    ):
        new = tmp_path / weights.name
        fit(new, Odd(dropout=0.0), weights=str(weights))
        assert f"note: starts with the weights of {weights}" in (new / "log.txt").read_text()
        assert (
            list(losses(new)) == list(range(1, 9))
            and losses(new)[1] < losses(tmp_path / "run")[8] + 0.1
        )
    with pytest.raises(
        CheckpointError,
        match=r"not hold this model: middle.weight has shape \(3, 5\), the model's is \(4, 5\)",
    ):
        fit(tmp_path / "wider", Wider(), weights=str(tmp_path / "run" / "model"))
    with pytest.raises(CheckpointError, match=r"nowhere: holds no .safetensors file"):
        fit(tmp_path / "other", weights=str(tmp_path / "nowhere"))


@pytest.mark.parametrize("source", ["model", "checkpoint"])
def test_weights_of_another_shape_and_those_that_the_model_lacks_are_named(
    source: str, tmp_path: Path
) -> None:
    fit(tmp_path / "run", max_steps=2)
    weights = str(
        tmp_path / "run" / "model" if source == "model" else checkpoint(tmp_path / "run", 2)
    )
    said = r"not hold this model: middle.weight has shape \(3, 5\), the model's is \(5, 3\)$"
    with pytest.raises(CheckpointError, match=said):
        fit(tmp_path / "turned", Turned(), weights=weights)
    fit(tmp_path / "less", Smaller(), max_steps=2, weights=weights)
    assert (
        f"note: 3 tensors of {weights} are not in the model: forwards, frozen.weight, frozen.bias\n"
        in log_of(tmp_path / "less")
    )


def test_a_tensor_that_stands_in_two_files_is_not_chosen_by_chance(tmp_path: Path) -> None:
    fit(tmp_path / "run", max_steps=2)
    model = tmp_path / "run" / "model" / "model.safetensors"
    shutil.copy(model, model.with_name("model.fp16.safetensors"))
    said = r"model: scale is in model.fp16.safetensors and in model.safetensors; leave one of them"
    with pytest.raises(CheckpointError, match=said):
        fit(tmp_path / "new", weights=str(model.parent))


@pytest.mark.parametrize("resume", ["auto", "path"])
def test_of_many_checkpoints_only_the_one_to_go_on_from_is_read(
    resume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tmp_path / "run", max_steps=6)
    read: list[str] = []
    inspect = discover.inspect
    monkeypatch.setattr(discover, "inspect", lambda path: read.append(path.name) or inspect(path))
    newest = checkpoint(tmp_path / "run", 6)
    fit(tmp_path / "run", resume="auto" if resume == "auto" else str(newest))
    assert read == [newest.name]
