"""Evaluations during training, and their end by a signal."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from brought_tasks import Numbers, Plain
from fake_run import fake_run, step_info
from from_launcher import configured
from launchers import json_in
from one_process import rows, steps

from trainer import Data, Run, StepInfo, Trainer
from trainer.callbacks.log import Log
from trainer.callbacks.measuring import Evaluation
from trainer.config.interval import interval_of
from trainer.distributed import votes
from trainer.distributed.exit import Stopped


class MeasuredLog(Log):
    def measure(self, run: Run, info: StepInfo) -> dict[str, float]:
        return {"loss": 1.0}


def every(steps: int | None) -> Any:
    """Return a set that is due every few steps, or at the end alone."""
    return SimpleNamespace(every=None if steps is None else interval_of(steps, None))


SETS = {"clean": every(4), "noisy": every(2), "end": every(None)}


def evaluated(
    step: int, *, is_last: bool = False, before: int = 0, within: int = 0
) -> tuple[StepInfo, list[list[str]], list[str]]:
    """Call the hook at a step.

    Args:
        before, within: the signal that came before the evaluation, and within it.

    Returns:
        The step, the names of the sets of each evaluation, and the calls that close loaders.
    """
    measured: list[list[str]] = []
    closed: list[str] = []
    run = fake_run(stop_signal=before, evaluation_sets=SETS)
    run.evaluator = SimpleNamespace(close=lambda: closed.append("closed"))

    def evaluate(names: Collection[str]) -> dict[str, float]:
        measured.append(list(names))
        run.stop_signal = run.stop_signal or within
        return {} if within else {"eval/loss": 0.5}

    run.evaluate = evaluate
    info = step_info(step, is_last=is_last)
    hook = Evaluation(MeasuredLog(1))
    hook.on_step(run, info)
    return info, measured, closed


@pytest.mark.parametrize(
    ("step", "is_last", "expected"),
    [
        (1, False, []),
        (2, False, [["noisy"]]),
        (4, False, [["clean", "noisy"]]),
        (5, True, [["clean", "noisy", "end"]]),
    ],
)
def test_each_set_has_its_own_interval_and_all_are_measured_at_the_end(
    step: int, is_last: bool, expected: list[list[str]]
) -> None:
    info, measured, closed = evaluated(step, is_last=is_last)
    assert measured == expected
    assert info.evaluation == ({"eval/loss": 0.5} if expected else None)
    assert closed == (["closed"] if is_last else []), "no loader outlives the last step"


def test_a_run_that_a_signal_ends_is_not_evaluated() -> None:
    info, measured, _ = evaluated(4, is_last=True, before=signal.SIGTERM)
    assert (measured, info.evaluation) == ([], None)


def test_a_signal_during_an_evaluation_makes_this_step_the_last() -> None:
    info, _, closed = evaluated(4, within=signal.SIGTERM)
    assert info.is_last and info.evaluation is None
    assert info.metrics == {"loss": 1.0}, "the last step is logged"
    assert closed == ["closed"]


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


@pytest.mark.usefixtures("fresh_accelerate")
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_ends_an_evaluation_which_is_then_no_result(
    tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A vote would wait a quarter of a second for the next one; a thousand batches take less.
    monkeypatch.setattr(votes, "_MICROSECONDS", 0)
    task, folder = Interrupted(number=number), tmp_path / "run"
    config = replace(
        configured(folder), max_steps=6, eval_every=2, evaluation_batch_size=1, log_every=10
    )
    trainer = Trainer(task, config)
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped:
        trainer.fit()
    assert signal.getsignal(number) == before and stopped.value.signal == number
    assert len(task.batches) < 1000

    assert [row["step"] for row in rows(folder)] == [1, 2]
    assert not [key for row in rows(folder) for key in row if key.startswith("eval/")]
    assert trainer.run.last_evaluation == {} and steps(folder) == [2]
    summary = json_in(folder / "summary.json")
    assert summary["evaluation"] == {} and summary["stopped_by"] == number.name
    assert trainer.evaluate().keys() == {"eval/error"}, "on request it is measured afterwards"

    Trainer(Interrupted(batches=[1] * 20), replace(config, resume="auto")).fit()
    evaluated_at = [row["step"] for row in rows(folder) if "eval/error" in row]
    assert evaluated_at == [4, 6], "a set is measured when it is due again"
