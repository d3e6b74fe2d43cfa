"""Evaluations during training, and their end by a signal."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from brought_tasks import Numbers, Plain
from from_launcher import configured
from launchers import json_in
from one_process import rows, steps

from trainer import Data, Trainer
from trainer.distributed import agreement
from trainer.distributed.exit import Stopped


@dataclass(frozen=True, kw_only=True)
class Interrupted(Plain):
    """Gets a signal in its first evaluation, of a thousand batches."""

    number: int = field(default=signal.SIGUSR1, compare=False)
    batches: list[int] = field(default_factory=list, compare=False)

    def build_data(self) -> Data:
        return Data(train=Numbers(64), evaluation=Numbers(1000, seed=1))

    def evaluation_step(self, model: Any, batch: Any) -> Any:
        self.batches.append(len(batch["x"]))
        if len(self.batches) == 20:
            os.kill(os.getpid(), self.number)
        return {"error": (model(batch["x"]) - batch["y"]).abs().squeeze(-1)}


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_ends_an_evaluation_which_is_then_no_result(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A vote would wait a quarter of a second for the next one; a thousand batches take less.
    monkeypatch.setattr(agreement, "_MICROSECONDS", 0)
    task, folder = Interrupted(number=number), tmp_path / "run"
    config = configured(folder, max_steps=6, eval_every=2, evaluation_batch_size=1, log_every=10)
    trainer = Trainer(task, config)
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped:
        trainer.fit()
    assert signal.getsignal(number) == before and stopped.value.signal == number
    assert len(task.batches) < 1000

    assert [row["step"] for row in rows(folder)] == [1, 2], "the last step is logged"
    assert not [key for row in rows(folder) for key in row if key.startswith("eval/")]
    assert trainer.run.last_evaluation == {} and steps(folder) == [2]
    summary = json_in(folder / "summary.json")
    assert summary["evaluation"] == {} and summary["stopped_by"] == number.name
    assert trainer.evaluate().keys() == {"eval/error"}, "on request it is measured afterwards"

    Trainer(Interrupted(batches=[1] * 20), replace(config, resume="auto")).fit()
    evaluated_at = [row["step"] for row in rows(folder) if "eval/error" in row]
    assert evaluated_at == [4, 6], "a set is measured when it is due again"
