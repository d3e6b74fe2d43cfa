"""What a task says is printed once, and is in the log of the run that it belongs to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from brought_tasks import Plain
from one_process import fit, log_of
from torch import Generator, nn

import trainer
from trainer import Data


def told(item: Any, generator: Generator) -> Any:
    if int(item["at"]) == 3:
        trainer.say("item 3")
    return item


class Talks(Plain):
    def build_data(self) -> Data:
        trainer.say(f"data for {'the main process' if trainer.is_main() else 'another'}")
        return replace(super().build_data(), augment=told)

    def build_model(self) -> nn.Module:
        trainer.say("the model")
        return super().build_model()

    def training_step(self, model: nn.Module, batch: Any) -> Any:
        if trainer.now().evaluation_set is None:
            trainer.say(f"step {trainer.now().step}")
        return super().training_step(model, batch)


def test_what_a_task_says_is_printed_and_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer.say("before a run")
    settings = {"max_steps": 2, "micro_batch_size": 4, "keep_last": 0}
    fit(tmp_path / "run", Talks(), sanity_evaluation=False, **settings)
    trainer.say("after it")

    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "before a run" and lines[-1] == "after it"
    logged = log_of(tmp_path / "run").splitlines()
    assert logged[:2] == ["data for the main process", "the model"]
    assert [line for line in logged if line in ("step 1", "step 2")] == ["step 1", "step 2"]
    assert "before a run" not in logged and "after it" not in logged


def test_another_rank_says_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    trainer.say("twice")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("workers", [0, 1])
def test_loading_processes_say_nothing(workers: int, tmp_path: Path) -> None:
    settings = {"max_steps": 16, "micro_batch_size": 4, "keep_last": 0}
    fit(tmp_path, Talks(), workers=workers, **settings)
    assert log_of(tmp_path).splitlines().count("item 3") == (1 if workers == 0 else 0)
