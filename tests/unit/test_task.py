"""Where the class of a task is looked for."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_task_is_found_beside_the_config_and_between_it_and_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As examples/configs/digits_cnn.yaml finds examples/digits_cnn.py."""
    from trainer.config.load import load_config
    from trainer.errors import ConfigError
    from trainer.script import load_task

    (tmp_path / "project/configs").mkdir(parents=True)
    (tmp_path / "project/only_here.py").write_text(
        "import trainer\nclass Mine(trainer.Task):\n    pass\n"
    )
    config = tmp_path / "project/configs/train.yaml"
    config.write_text("task: only_here:Mine\nepochs: 1\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.syspath_prepend(elsewhere)
    monkeypatch.chdir(elsewhere)
    with pytest.raises(
        ConfigError,
        match="cannot be imported: ModuleNotFoundError: No module named 'only_here'",
    ):
        load_task(load_config(["--config", str(config)]))
    monkeypatch.chdir(tmp_path)
    task, _ = load_task(load_config(["--config", str(config)]))
    assert type(task).__name__ == "Mine"


@pytest.mark.parametrize(
    ("name", "line"),
    [
        (
            "glob:Glob",
            r"task: 'glob:Glob': /.*glob.py has no Task 'Glob'; known: none",
        ),
        ("empty_here:Mine", r"empty_here.py has no Task 'Mine'; known: none$"),
        ("some_here:Mine", r"some_here.py has no Task 'Mine'; known: Yours$"),
    ],
)
def test_a_class_that_is_not_there(
    name: str, line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from trainer.config.load import load_config
    from trainer.errors import ConfigError
    from trainer.script import load_task

    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    for file, text in (
        ("glob", "class Glob: pass"),
        ("empty_here", ""),
        ("some_here", "from trainer import Data, Task\nclass Yours(Task): pass"),
    ):
        Path(f"{file}.py").write_text(text)
    with pytest.raises(ConfigError, match=line):
        load_task(load_config(["--task", name, "--epochs", "1"]))
