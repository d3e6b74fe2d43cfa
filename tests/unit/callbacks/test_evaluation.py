"""Evaluations during training, and those that a signal left no time for."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from brought_tasks import Numbers, Plain
from fake_run import fake_run, step_info
from from_launcher import configured
from one_process import checkpoint, reseal, rows, steps

from trainer import Callback, Data, Run, StepInfo, Trainer
from trainer.callbacks.best import Best
from trainer.callbacks.evaluation import Evaluation
from trainer.callbacks.log import Log
from trainer.distributed import votes
from trainer.distributed.exit import Stopped
from trainer.hooks import Hooks

RESULT = {"eval/loss": 0.5}


class MeasuredLog(Log):
    def measure(self, run: Run, info: StepInfo) -> dict[str, float]:
        return {"loss": 1.0}


def evaluated_every(steps: int | None) -> Any:
    """A set that is due every few steps, or at the end alone."""
    return SimpleNamespace(is_due_at=lambda step: steps is not None and step % steps == 0)


def evaluating_run(*, signal_in_evaluation: int = 0, **attributes: Any) -> Any:
    """A run at step 4 that evaluates every fourth step, and counts evaluations and closed loaders."""
    run = fake_run(
        step=4,
        samples=32,
        stop_signal=0,
        stopping=False,
        evaluations=0,
        measured=[],
        closed=0,
        evaluation_sets={"": evaluated_every(4)},
        train_data=SimpleNamespace(epochs_at=lambda samples: samples / 64),
    )
    vars(run).update(attributes)

    def evaluate(names: Collection[str]) -> dict[str, float]:
        run.evaluations += 1
        run.measured.append(list(names))
        if signal_in_evaluation:
            run.stop_signal, run.stopping = signal_in_evaluation, True
            return {}
        return RESULT

    def close() -> None:
        run.closed += 1

    run.evaluate = evaluate
    run.close_evaluation = close
    return run


def evaluation_at(run: Any, step: int = 4, **values: Any) -> tuple[Evaluation, StepInfo]:
    hook, info = Evaluation(MeasuredLog(1)), step_info(step, **values)
    hook.on_step(run, info)
    return hook, info


class Seen(Callback):
    """Keeps the steps of evaluations, also in checkpoints."""

    def __init__(self) -> None:
        self.evaluations: list[int] = []

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        if info.evaluation is not None:
            self.evaluations.append(info.step)

    def state_dict(self) -> Mapping[str, Any]:
        return {"evaluations": self.evaluations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.evaluations = list(state["evaluations"])


@pytest.mark.parametrize(
    ("step", "is_last", "evaluated"), [(3, False, False), (4, False, True), (5, True, True)]
)
def test_evaluations_are_made_every_few_steps_and_at_the_last(
    step: int, is_last: bool, evaluated: bool
) -> None:
    run = evaluating_run()
    _, info = evaluation_at(run, step, is_last=is_last)
    assert info.evaluation == (RESULT if evaluated else None)
    assert run.closed == is_last, "no loader outlives the last step"


def test_without_a_set_to_measure_on_there_is_no_evaluation() -> None:
    run = evaluating_run(evaluation_sets={})
    _, info = evaluation_at(run, is_last=True)
    assert (run.evaluations, info.evaluation) == (0, None)


SEVERAL = {"clean": evaluated_every(4), "noisy": evaluated_every(2), "end": evaluated_every(None)}


@pytest.mark.parametrize(
    ("step", "is_last", "measured"),
    [
        (1, False, []),
        (2, False, [["noisy"]]),
        (4, False, [["clean", "noisy"]]),
        (5, True, [["clean", "noisy", "end"]]),
    ],
)
def test_each_set_has_its_own_interval_and_all_are_measured_at_the_end(
    step: int, is_last: bool, measured: list[list[str]]
) -> None:
    run = evaluating_run(evaluation_sets=SEVERAL)
    evaluation_at(run, step, is_last=is_last)
    assert run.measured == measured


def test_the_sets_that_were_due_are_pending_by_name() -> None:
    run = evaluating_run(evaluation_sets=SEVERAL, signal_in_evaluation=signal.SIGTERM)
    hook, _ = evaluation_at(run, 2, is_last=True)
    assert run.measured == [["clean", "noisy", "end"]]
    assert hook.state_dict() == {"pending": ["noisy"]}, "that it ended here is no reason"

    resumed = evaluating_run(evaluation_sets=SEVERAL)
    hook.load_state_dict({"pending": ["noisy", "of before"]})
    hook.on_start(resumed)
    assert resumed.measured == [["noisy"]] and hook.state_dict() == {}


@pytest.mark.parametrize(("step", "pending"), [(4, {"pending": [""]}), (5, {})])
def test_a_run_that_a_signal_ends_leaves_its_due_evaluation_pending(
    step: int, pending: dict[str, list[str]]
) -> None:
    run = evaluating_run(stop_signal=signal.SIGTERM)
    hook, info = evaluation_at(run, step, is_last=True)
    assert (run.evaluations, info.evaluation) == (0, None)
    assert hook.state_dict() == pending


def test_a_signal_during_an_evaluation_makes_this_step_the_last() -> None:
    run = evaluating_run(signal_in_evaluation=signal.SIGTERM)
    hook, info = evaluation_at(run)
    assert info.is_last and info.evaluation is None
    assert info.metrics == {"loss": 1.0}, "the last step is logged"
    assert hook.pending == [""] and run.closed == 1


def test_a_pending_evaluation_is_made_up_before_the_first_step() -> None:
    run, seen = evaluating_run(), Seen()
    hook = Evaluation(MeasuredLog(1))
    hook.behind = Hooks([seen])
    hook.load_state_dict({"pending": True})
    hook.on_start(run)
    assert seen.evaluations == [4], "the hooks behind it see it at its step"
    assert hook.state_dict() == {}
    hook.on_start(run)
    assert run.evaluations == 1


def test_a_signal_leaves_no_time_to_make_it_up_either() -> None:
    run, seen = evaluating_run(signal_in_evaluation=signal.SIGTERM), Seen()
    hook = Evaluation(MeasuredLog(1))
    hook.behind = Hooks([seen])
    hook.load_state_dict({"pending": True})
    hook.on_start(run)
    assert (seen.evaluations, run.closed) == ([], 1)
    assert hook.state_dict() == {"pending": [""]}


@dataclass(frozen=True, kw_only=True)
class Interrupted(Plain):
    """Gets a signal in its first evaluation, of a thousand batches."""

    number: int = field(default=signal.SIGUSR1, compare=False)  # 0 is none
    batches: list[int] = field(default_factory=list, compare=False)

    def build_data(self) -> Data:
        return Data(train=Numbers(64), evaluation=Numbers(1000, seed=1))

    def evaluation_step(self, model: Any, batch: Any) -> Any:
        self.batches.append(len(batch["x"]))
        if len(self.batches) == 20:
            os.kill(os.getpid(), self.number)
        return {"error": (model(batch["x"]) - batch["y"]).abs().squeeze(-1)}


@pytest.fixture
def votes_after_each_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A vote would wait a quarter of a second for the next one; a thousand batches take less."""
    monkeypatch.setattr(votes, "_SECONDS", 0.0)


@pytest.mark.usefixtures("fresh_accelerate", "votes_after_each_batch")
@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_ends_an_evaluation_which_is_then_no_result(
    tmp_path: Path, number: signal.Signals
) -> None:
    task, folder = Interrupted(number=number), tmp_path / "run"
    config = replace(configured(folder), max_steps=40, eval_every=2, evaluation_batch_size=1)
    trainer = Trainer(task, replace(config, log_every=10))
    before = signal.getsignal(number)
    with pytest.raises(Stopped) as stopped:
        trainer.fit()
    assert signal.getsignal(number) == before and stopped.value.signal == number
    assert len(task.batches) < 1000

    assert [row["step"] for row in rows(folder)] == [1, 2]
    assert not [key for row in rows(folder) for key in row if key.startswith("eval/")]
    assert trainer.run.last_evaluation == {} and steps(folder) == [2]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["evaluation"] == {} and summary["stopped_by"] == number.name
    assert trainer.evaluate().keys() == {"eval/error"}, "on request it is measured afterwards"


def numbers(folder: Path) -> list[dict[str, float]]:
    """Return the rows of metrics.jsonl without clocks and memory."""
    kept = ("step", "loss", "lr", "grad_norm", "eval/error")
    return [{key: row[key] for key in kept if key in row} for row in rows(folder)]


def train(folder: Path, number: int, **more: Any) -> tuple[list[int], Any]:
    """Train six steps with three evaluations; return their steps, and the state of ``Best``."""
    config = replace(
        configured(folder),
        max_steps=6,
        eval_every=2,
        lr=0.1,
        evaluation_batch_size=1,
        best_metric="eval/error",
        early_stop_patience=3,
        **more,
    )
    seen = Seen()
    trainer = Trainer(Interrupted(number=number), config, callbacks=[seen])
    with contextlib.suppress(Stopped):
        trainer.fit()
    [best] = [hook for hook in trainer.run.callbacks if isinstance(hook, Best)]
    return seen.evaluations, best.state_dict()


def make_old(folder: Path) -> None:
    """Rewrite the checkpoint of step 2 as versions before ``Evaluation`` had a state wrote it."""
    path = checkpoint(folder, 2)
    state = json.loads((path / "state.json").read_text())
    assert state["callbacks"].pop("Evaluation") == {"pending": [""]}
    state["evaluation_owed"] = True
    (path / "state.json").write_text(json.dumps(state))
    reseal(path)


@pytest.mark.usefixtures("fresh_accelerate", "votes_after_each_batch")
@pytest.mark.parametrize("old", [False, True])
def test_an_interrupted_evaluation_is_made_up_when_the_run_is_resumed(
    tmp_path: Path, old: bool
) -> None:
    whole, folder = tmp_path / "whole", tmp_path / "run"
    evaluations, best = train(whole, 0)
    assert evaluations == [2, 4, 6]

    assert train(folder, signal.SIGTERM)[0] == []
    assert train(folder, signal.SIGTERM, resume="auto")[0] == [], "ended in the same way"
    assert numbers(folder)[-1]["step"] == 2
    if old:
        make_old(folder)

    assert train(folder, 0, resume="auto") == (evaluations, best)
    assert numbers(folder) == numbers(whole)
    files = [path / "best" / "model.safetensors" for path in (whole, folder)]
    assert files[0].read_bytes() == files[1].read_bytes()
