"""Which checkpoint a run begins with: what ``resume`` takes, passes over and refuses."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from one_process import checkpoint, fit, log_of, lose, losses, reseal, rows, steps

from trainer import CheckpointError, ConfigError, LaunchError
from trainer.checkpoint import discover, store
from trainer.commands import cli


def test_auto_begins_resumes_and_finishes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(run, resume="auto")
    whole, model = losses(run), (run / "model/model.safetensors").read_bytes()
    lose(run, 8, 6)
    with open(run / "metrics.jsonl", "a") as file:
        file.write('{"step": 9, "lo')  # the run was killed here
    (run / "checkpoints/.step-00000006.part").mkdir()
    fit(run, resume="auto")
    assert f"resumed from {run / 'checkpoints' / 'step-00000004'}" in log_of(run)
    assert [row["step"] for row in rows(run)] == list(range(1, 9)), "each step has one row"
    assert steps(run) == [8, 6, 4, 2] and len(names(run)) == 4

    fit(run, resume="auto")  # nothing is left to do
    assert losses(run) == whole, "as if nothing had happened"
    assert (run / "model/model.safetensors").read_bytes() == model

    lose(run, 2, 4, 6, 8)
    fit(run, resume="auto")
    assert losses(run) == whole and len(rows(run)) == 8, "without checkpoints it starts at step 0"


def test_auto_passes_over_the_damaged_and_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    fit(run)
    whole = losses(run)
    damaged = checkpoint(run, 8) / "rank-00000.safetensors"
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    (checkpoint(run, 6) / store.STATE).unlink()
    fit(run, resume="auto")
    log = log_of(run)
    assert (
        "passed over step-00000008: rank-00000.safetensors was changed after it was written" in log
    )
    assert "passed over step-00000006: state.json is missing" in log
    assert f"resumed from {run / 'checkpoints' / 'step-00000004'}" in log
    assert losses(run) == whole and steps(run) == [8, 6, 4, 2]
    assert (run / "checkpoints/step-00000008.damaged").is_dir()


def names(run: Path) -> list[str]:
    return sorted(os.listdir(run / "checkpoints"))


@pytest.mark.parametrize("resume", ["auto", "path"])
def test_a_checkpoint_of_a_newer_format_is_refused_and_keeps_its_name(
    resume: str, tmp_path: Path
) -> None:
    fit(tmp_path, max_steps=6)
    reseal(checkpoint(tmp_path, 6), version=2)
    before = names(tmp_path)
    with pytest.raises(
        CheckpointError, match=r"step-00000006: has version 2 of the format; this program reads 1"
    ):
        fit(tmp_path, resume=resume if resume == "auto" else str(checkpoint(tmp_path, 6)))
    assert names(tmp_path) == before


def test_a_checkpoint_that_cannot_be_read_now_is_not_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path, max_steps=6)
    before = names(tmp_path)
    real, unreadable = discover.hash_file, {store.name_of(6)}

    def failing(path: Path) -> str:
        if path.parent.name in unreadable:
            raise OSError(5, "Input/output error", str(path))
        return real(path)

    monkeypatch.setattr(discover, "hash_file", failing)
    with pytest.raises(
        CheckpointError,
        match=r"step-00000006: cannot be read: .*Input/output error.*; resume: auto pas",
    ):
        fit(tmp_path, resume="auto")
    capsys.readouterr()
    assert cli.main(["checkpoints", str(tmp_path), "--verify"]) == 1
    assert "damaged" not in capsys.readouterr().out
    assert names(tmp_path) == before
    unreadable = {store.name_of(step) for step in (2, 4)}  # nobody reads older checkpoints
    fit(tmp_path, resume="auto")
    assert steps(tmp_path) == [8, 6, 4, 2]


def test_where_all_are_damaged_auto_does_not_start_at_step_0(tmp_path: Path) -> None:
    fit(tmp_path, max_steps=4)
    for step in (2, 4):
        (checkpoint(tmp_path, step) / store.STATE).write_text("{}")
    before = names(tmp_path)
    said = r"step-00000004: state.json .*; no checkpoint there is whole; to start anew"
    with pytest.raises(CheckpointError, match=said):
        fit(tmp_path, resume="auto")
    assert names(tmp_path) == before
    fit(tmp_path, overwrite=True)
    assert list(losses(tmp_path)) == list(range(1, 9))


def test_a_checkpoint_whose_model_is_not_whole_is_passed_over(tmp_path: Path) -> None:
    fit(tmp_path)
    path = checkpoint(tmp_path, 8) / store.STATE
    path.write_text(path.read_text().replace('"middle.weight"', '"middle.wight"'))
    reseal(path.parent)
    fit(tmp_path, resume="auto")
    assert (
        "passed over step-00000008: parameter middle.wight: 0 elements are stored instead of 15"
        in log_of(tmp_path)
    )
    assert (tmp_path / "checkpoints/step-00000008.damaged").is_dir()


# -- resume: a path --------------------------------------------------------------------------------


def test_a_path_is_that_checkpoint_or_an_error(tmp_path: Path) -> None:
    run, branch = tmp_path / "run", tmp_path / "branch"
    fit(run)
    four = checkpoint(run, 4)
    fit(branch, resume=str(four))
    assert losses(branch) == {step: loss for step, loss in losses(run).items() if step > 4}
    with pytest.raises(ConfigError, match=r"continues to step-00000008; give another output_dir"):
        fit(run, resume=str(four))
    lose(run, 8, 6)
    fit(run, resume=str(four))  # the newest of its own run: that run goes on
    assert list(losses(run)) == list(range(1, 9))
    for wrong, code in ((run, 1), (tmp_path / "nowhere", 2)):
        match = r"manifest.json is missing; name another checkpoint"
        with pytest.raises((CheckpointError, LaunchError), match=match) as told:
            fit(tmp_path / "other", resume=str(wrong))
        assert told.value.exit_code == code
