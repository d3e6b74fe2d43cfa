"""A secret among a task's settings reaches the task, and no file of its run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from brought_tasks import Gated
from one_process import checkpoint, reseal

import trainer
from trainer import ConfigError, Trainer
from trainer.text import HIDDEN

pytestmark = pytest.mark.usefixtures("fresh_accelerate")
SECRET = "hf_abcdefgh"


def run(folder: Path, *words: str) -> Gated:
    given = [
        "--task",
        "brought_tasks:Gated",
        "--output_dir",
        str(folder),
        "--max_steps",
        "4",
        "--save_every",
        "2",
    ]
    loaded = trainer.load_config([*words, *given])
    task, config, *_ = trainer.load_task(loaded)
    Trainer(task, config, origins=loaded.origins).fit()
    assert isinstance(task, Gated)
    return task


def test_a_secret_is_written_nowhere_and_must_be_given_again(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    task = run(folder, "--task_settings.hf_token", SECRET)
    assert task.hf_token == SECRET, "the task gets it"
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []
    saved = str(folder / "config.yaml")
    rule = r"config.yaml:\d+: task_settings.hf_token: '\(hidden\)': a secret, .*: --task_settings.hf_token VALUE$"
    with pytest.raises(ConfigError, match=rule):
        trainer.load_config([saved])
    another = run(
        folder, saved, "--task_settings.hf_token", "another", "--resume", "auto", "--max_steps", "4"
    )
    assert another.hf_token == "another", "that is no change of the run"


def test_checkpoints_that_hold_a_secret_are_gone_on_with(tmp_path: Path) -> None:
    """Earlier versions wrote them."""
    run(tmp_path / "run", "--task_settings.hf_token", SECRET)
    path = checkpoint(tmp_path / "run", 2)
    state = json.loads((path / "state.json").read_text())
    assert state["mathematics"]["task_settings"]["hf_token"] == HIDDEN
    state["mathematics"]["task_settings"]["hf_token"] = SECRET
    (path / "state.json").write_text(json.dumps(state))
    reseal(path)
    run(tmp_path / "new", "--task_settings.hf_token", SECRET, "--resume", str(path))
    with pytest.raises(ConfigError, match=r"task_settings\.width: 4 -> 5") as told:
        run(
            tmp_path / "other",
            "--task_settings.hf_token",
            "x",
            "--task_settings.width",
            "5",
            "--resume",
            str(path),
        )
    assert SECRET not in str(told.value)
