"""Names that ``import trainer`` offers."""

from __future__ import annotations

from pathlib import Path

import pytest

import trainer
from trainer.distributed.exit import run_and_exit


def test_public_name_of_the_release_before_works_with_a_warning() -> None:
    old = "run"
    with pytest.warns(
        DeprecationWarning, match=r"^trainer\.run is called trainer\.run_and_exit now$"
    ):
        assert getattr(trainer, old) is run_and_exit
    assert old not in trainer.__all__


def test_arguments_of_the_release_before_work_with_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_accelerate: None
) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = trainer.load_config(["--task", "a:B", "--max_steps", "1", "--trackers", "[wandbb]"])
    with pytest.warns(DeprecationWarning, match=r"^Loaded\.where is called Loaded\.origins now$"):
        former = {"where": loaded.where}
    with (
        pytest.warns(DeprecationWarning, match=r"^where= is called origins= now$"),
        pytest.raises(
            trainer.ConfigError,
            match=r"^command line: trackers: 'wandbb': no tracker of Accelerate",
        ),
    ):
        trainer.Trainer(trainer.Task(), loaded.config, **former)
    with pytest.warns(DeprecationWarning, match=r"^where= is called origins= now$"):
        trainer.launch(loaded.config, **former)
