"""Runs that are read back: from output folders, and from W&B."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_runs import made, written

from trainer.commands.compare import make_report
from trainer.commands.finished_runs import read_run
from trainer.errors import ConfigError


def test_output_folder_of_a_killed_run_is_read(tmp_path: Path) -> None:
    """Without summary.json, and with a last row that was not written to its end."""
    folder = written(made("a"), tmp_path / "a")
    (folder / "summary.json").unlink()
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')
    told = make_report([read_run(folder)])
    assert (told["runs"][0]["step"], told["runs"][0]["memory"]) == (5, None)


def test_a_run_is_called_by_its_run_name_where_it_has_one(tmp_path: Path) -> None:
    folder = written(made("a", run_name="B-ddp-2"), tmp_path / "folder")
    assert read_run(folder).name == "folder"  # all runs of the task are called so
    config = folder / "config.yaml"
    config.write_text(config.read_text() + 'run_name: "{strategy}-by-hand"\n')
    assert read_run(folder).name == "B-ddp-2"


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("plan.json", "{", "plan.json: the file is damaged"),
        ("plan.json", "[]", "plan.json: the file is damaged"),
        ("plan.json", '{"strategy": 1, "world_size": "2"}', "plan.json: the file is damaged"),
        (
            "plan.json",
            '{"strategy": "ddp", "world_size": 2, "task_folder": 5}',
            "plan.json: the file is damaged",
        ),
        ("config.yaml", "[", "config.yaml:1: the file cannot be read"),
        ("config.yaml", "- 1", "config.yaml: the file must be a mapping"),
        ("metrics.jsonl", "3\n", "metrics.jsonl: the file is damaged"),
        ("metrics.jsonl", '{"step": 1, "loss": "low"}\n', "metrics.jsonl: the file is damaged"),
        ("summary.json", '{"peak_memory_bytes": 3}', "summary.json: the file is damaged"),
        ("summary.json", '{"steps": "x"}', "summary.json: the file is damaged"),
    ],
)
def test_a_damaged_file_is_one_line(file: str, text: str, said: str, tmp_path: Path) -> None:
    folder = written(made("a"), tmp_path / "a")
    (folder / file).write_text(text)
    with pytest.raises(ConfigError, match=said) as told:
        read_run(folder)
    assert "\n" not in str(told.value)
