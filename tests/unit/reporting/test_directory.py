"""The folder of a run: a finished one stays as it is, and only what runs wrote is deleted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from launchers import json_in
from one_process import checkpoint, fit, log_of, losses, rows, steps
from run_folders import everything
from torch import nn

from trainer import Callback, CheckpointError, ConfigError, Run, StepInfo
from trainer.reporting.directory import RunDirectory
from trainer.reporting.used_folder import cut_rows


class Rare(Plain):
    """Measures something of which no evaluation sample has any."""

    def evaluation_step(self, model: nn.Module, batch: Any) -> Any:
        return {"loss": (torch.ones(()), 1.0), "recall/rare": (torch.zeros(()), 0.0)}


def test_a_metric_without_a_value_is_null_and_the_run_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fit(tmp_path, Rare())

    def refuse(constant: str) -> None:
        raise ValueError(constant)

    summary = json.loads((tmp_path / "summary.json").read_text(), parse_constant=refuse)
    assert summary["evaluation"]["eval/recall/rare"] is None
    before = everything(tmp_path)
    assert fit(tmp_path, Rare(), resume="auto").step == 8
    assert everything(tmp_path) == before and "finished already" in capsys.readouterr().out


def test_a_run_that_was_killed_before_its_model_was_written_writes_it(tmp_path: Path) -> None:
    fit(tmp_path, max_steps=6)
    model, summary = tmp_path / "model/model.safetensors", tmp_path / "summary.json"
    of_six = model.read_bytes()
    summary_of_six = summary.read_text()
    fit(tmp_path, resume="auto")
    of_eight = model.read_bytes()
    # Killed after the last checkpoint: model and summary are of the run that ended at step 6.
    model.write_bytes(of_six)
    summary.write_text(summary_of_six)
    fit(tmp_path, resume="auto")
    assert model.read_bytes() == of_eight != of_six and json_in(summary)["steps"] == 8
    model.unlink()
    fit(tmp_path, resume="auto")
    assert model.read_bytes() == of_eight and len(rows(tmp_path)) == 8


# -- what --overwrite deletes ----------------------------------------------------------------------


def refused(folder: Path, names: str, **settings: object) -> None:
    before = everything(folder)
    names = names.partition("/")[0]
    with pytest.raises(
        ConfigError,
        match=rf"output_dir: .*holds files that no run wrote \({names}\); they are not del",
    ):
        fit(folder, overwrite=True, **settings)
    assert everything(folder) | {str(folder): before[str(folder)]} == before


def test_overwrite_keeps_files_that_only_have_the_names_of_a_runs(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model/net.py").write_text("class Net: ...")
    (tmp_path / "config.yaml").write_text("mine: true")
    refused(tmp_path, "config.yaml, model")
    (tmp_path / "plan.json").write_text('{"my": "plan"}')
    refused(tmp_path, "config.yaml, model, plan.json")


@pytest.mark.parametrize(
    "name",
    ["thesis.tex", "model", "best/notes", "checkpoints/notes.txt", "checkpoints/step-1", ".git"],
)
def test_overwrite_keeps_foreign_files_among_those_of_a_run(name: str, tmp_path: Path) -> None:
    fit(tmp_path, max_steps=2)
    if name == "model":
        (tmp_path / "model/model.safetensors").rename(tmp_path / "model/net.py")
    else:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("mine")
    refused(tmp_path, name.removesuffix("/notes"))


def test_overwrite_deletes_all_that_a_run_wrote(tmp_path: Path) -> None:
    fit(tmp_path / "run", max_steps=4)
    shutil.copytree(
        checkpoint(tmp_path / "run", 4), tmp_path / "run/checkpoints/step-00000003.damaged"
    )
    (tmp_path / "run/.model.part").mkdir()
    fit(tmp_path / "run", max_steps=2, overwrite=True)
    fit(tmp_path / "new", max_steps=2)
    assert steps(tmp_path / "run") == [2] and list(losses(tmp_path / "run")) == [1, 2]
    left = [
        sorted(str(p.relative_to(tmp_path / name)) for p in (tmp_path / name).rglob("*"))
        for name in ("run", "new")
    ]
    assert left[0] == left[1]


def test_what_a_run_left_that_failed_before_its_first_step_is_replaced(tmp_path: Path) -> None:
    class Misnamed(Plain):
        def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
            raise KeyError("image")

    with pytest.raises(KeyError):
        fit(tmp_path, task=Misnamed(), max_steps=2)
    assert (tmp_path / "plan.json").is_file() and not (tmp_path / "metrics.jsonl").exists()

    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"holds files that no run wrote \(notes.txt\)"):
        fit(tmp_path, max_steps=2)
    (tmp_path / "notes.txt").unlink()

    fit(tmp_path, max_steps=4)
    assert list(losses(tmp_path)) == [1, 2, 3, 4]
    said = r"to resume from .*/step-0+{}: start the same command with --resume auto; otherwise .* --overw"
    with pytest.raises(ConfigError, match=said.format(4)):
        fit(tmp_path, max_steps=4)
    (checkpoint(tmp_path, 4) / "state.json").write_text("cut")
    with pytest.raises(ConfigError, match=said.format(2)):
        fit(tmp_path, max_steps=4)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(
        ConfigError, match="holds files already; there is no checkpoint to resume from; "
    ):
        fit(tmp_path, max_steps=4)


def test_files_of_a_callback_are_kept_by_a_resume_and_go_with_the_run(tmp_path: Path) -> None:
    class Pictures(Callback):
        def on_data(self, run: Any) -> None:
            (run.files / "data.txt").write_text("x")

        def on_step(self, run: Run, info: StepInfo) -> None:
            (run.files / f"{info.step}.txt").write_text("x")

    fit(tmp_path, None, Pictures(), max_steps=2)
    fit(tmp_path, max_steps=4, resume="auto")
    assert sorted(os.listdir(tmp_path / "files")) == ["1.txt", "2.txt", "data.txt"]
    fit(tmp_path, max_steps=2, overwrite=True)
    assert not (tmp_path / "files").exists(), "made for callbacks that ask"


def test_checkpoints_on_another_disk_are_emptied_and_stay_linked(tmp_path: Path) -> None:
    disk, out = tmp_path / "disk", tmp_path / "run"
    disk.mkdir()
    out.mkdir()
    (out / "checkpoints").symlink_to(disk)
    fit(out, max_steps=4)
    assert (out / "checkpoints").is_symlink() and sorted(os.listdir(disk)) == [
        "step-00000002",
        "step-00000004",
    ]
    fit(out, max_steps=2, overwrite=True)
    assert (out / "checkpoints").is_symlink() and sorted(os.listdir(disk)) == ["step-00000002"]
    (disk / "other.txt").write_text("mine")
    refused(out, "checkpoints/other.txt")


def test_a_refused_run_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("ten years of work")
    before = everything(tmp_path)
    for settings in ({}, {"resume": "auto"}, {"overwrite": True}):
        with pytest.raises(ConfigError, match="output_dir"):
            fit(tmp_path, **settings)  # type: ignore[arg-type]
    assert everything(tmp_path) | {str(tmp_path): before[str(tmp_path)]} == before


def test_lines_of_a_run_that_failed_before_its_plan_do_not_make_a_folder_used(
    tmp_path: Path,
) -> None:
    (tmp_path / "log.txt").write_text("a line\n")
    (tmp_path / "checkpoints").mkdir()
    fit(tmp_path, max_steps=2)
    assert log_of(tmp_path).startswith("a line\n")


def test_a_full_disk_is_an_error_of_one_line(tmp_path: Path) -> None:
    for name in ("metrics.jsonl", "summary.json"):
        (tmp_path / name).symlink_to("/dev/full")
    directory = RunDirectory(str(tmp_path), main=True)
    message = (
        f"^{tmp_path}/[a-z.]+: cannot be written: No space left on device; "
        "once the path can be written, "
    )
    with pytest.raises(CheckpointError, match=message):
        directory.row({"step": 1})
    with pytest.raises(CheckpointError, match=message):
        directory.write("summary.json", "{}")


def test_a_resume_drops_later_rows_and_one_that_a_kill_has_cut(tmp_path: Path) -> None:
    kept = '{"tensors": []}\n{"step": 4}\n'
    file = tmp_path / "digests.jsonl"
    file.write_text(f'{kept}{{"step": 5}}\n{{"step": 6, "wei')
    cut_rows(tmp_path, 4)
    assert file.read_text() == kept
