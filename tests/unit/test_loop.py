"""The Trainer's signal handlers and threads."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from brought_tasks import Numbers, Plain
from from_launcher import configured
from torch import nn

from trainer import Callback, Data, Run, StepInfo, Trainer
from trainer.callbacks.best import Best
from trainer.distributed.agreement import Agreement
from trainer.distributed.exit import Stopped
from trainer.strategies.tensors import unwrapped

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


class Fails(Plain):
    def training_step(self, model: object, batch: object) -> object:
        raise ZeroDivisionError("in the first step")


def test_signal_handlers_are_given_back_after_an_error(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    with pytest.raises(ZeroDivisionError):
        Trainer(Fails(), configured(tmp_path / "fails")).fit()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    Trainer(Plain(), configured(tmp_path / "fine")).fit()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


@dataclass(frozen=True, kw_only=True)
class Warned(Plain):
    """Gets a signal in an evaluation of many batches, each of which takes some time."""

    number: int = field(default=signal.SIGUSR1, compare=False)  # 0 is none
    batches: list[int] = field(default_factory=list, compare=False)

    def build_data(self) -> Data:
        return Data(train=Numbers(64), evaluation=Numbers(1000, seed=1))

    def evaluation_step(self, model: Any, batch: Any) -> Any:
        self.batches.append(len(batch["x"]))
        if self.number:
            time.sleep(0.005)
        if len(self.batches) == 20:
            os.kill(os.getpid(), self.number)
        return {"error": (model(batch["x"]) - batch["y"]).abs().squeeze(-1)}


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_ends_an_evaluation_which_is_then_no_result(
    tmp_path: Path, number: signal.Signals
) -> None:
    task = Warned(number=number)
    config = replace(
        configured(tmp_path / "run"),
        max_steps=40,
        eval_every=2,
        log_every=10,
        evaluation_batch_size=1,
    )
    trainer = Trainer(task, config)
    before, begun = signal.getsignal(number), time.monotonic()
    with pytest.raises(Stopped) as stopped:
        trainer.fit()
    assert signal.getsignal(number) == before and stopped.value.signal == number
    assert len(task.batches) < 20 + 100 and time.monotonic() - begun < 5.0, (
        "some half a second later"
    )
    rows = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["step"] for row in rows] == [1, 2] and not any(
        key.startswith("eval/") for row in rows for key in row
    )
    assert trainer.run.last_evaluation == {} and trainer.run.step == 2
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == ["step-00000002"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["evaluation"] == {} and summary["stopped_by"] == number.name
    assert trainer.evaluate().keys() == {"eval/error"}, "asked for afterwards it is done"


class Seen(Callback):
    """Counts the evaluations, and keeps that in checkpoints."""

    def __init__(self) -> None:
        self.evaluations: list[int] = []

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        if info.evaluation is not None:
            self.evaluations.append(info.step)

    def state_dict(self) -> Mapping[str, Any]:
        return {"evaluations": self.evaluations}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.evaluations = list(state["evaluations"])


def test_an_evaluation_that_a_signal_ended_is_made_up_when_the_run_goes_on(tmp_path: Path) -> None:
    def train(name: str, number: int, **more: Any) -> tuple[list[dict[str, float]], list[int], Any]:
        config = replace(
            configured(tmp_path / name), max_steps=12, eval_every=2, log_every=1, lr=0.1
        )
        config = replace(
            config, evaluation_batch_size=1, best_metric="eval/error", early_stop_patience=3, **more
        )
        trainer = Trainer(Warned(number=number), config, callbacks=[seen := Seen()])
        with contextlib.suppress(Stopped):
            trainer.fit()
        rows = [
            json.loads(line)
            for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        ]
        kept = ("step", "loss", "lr", "grad_norm", "eval/error")
        [best] = (callback for callback in trainer.run.callbacks if isinstance(callback, Best))
        return (
            [{k: v for k, v in row.items() if k in kept} for row in rows],
            seen.evaluations,
            best.state_dict(),
        )

    whole = train("whole", 0)
    rows, evaluations, _ = train("run", signal.SIGTERM)
    assert (rows[-1]["step"], evaluations) == (2, [])
    rows, evaluations, _ = train(
        "run", signal.SIGTERM, resume="auto"
    )  # which is ended in the same way
    assert (rows[-1]["step"], evaluations) == (2, [])
    assert train("run", 0, resume="auto") == whole
    assert whole[1][:2] == [2, 4]
    best, theirs = (tmp_path / name / "best" / "model.safetensors" for name in ("run", "whole"))
    assert best.read_bytes() == theirs.read_bytes()


class ToTheGroup(Callback):
    """Sends SIGTERM to this process and those that load data for it, as schedulers do."""

    def __init__(self) -> None:
        self.others = set(psutil.Process().children())

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        if info.step == 3:
            workers = set(psutil.Process().children()) - self.others
            assert workers
            for process in (*workers, psutil.Process()):
                process.terminate()


def test_a_signal_to_the_whole_group_leaves_the_data_workers_until_the_last_step(
    tmp_path: Path,
) -> None:
    config = replace(configured(tmp_path / "run"), max_steps=100_000, workers=1, log_every=100)
    trainer = Trainer(Plain(), config, callbacks=[ToTheGroup()])
    with pytest.raises(Stopped):
        trainer.fit()
    assert trainer.run.step > 3
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [
        f"step-{trainer.run.step:08}"
    ]


def test_max_time_ends_a_run_with_checkpoint_and_evaluation(tmp_path: Path) -> None:
    trainer = Trainer(
        Plain(), replace(configured(tmp_path / "run"), max_steps=100_000, max_time="1s")
    )
    trainer.run.meter.born = time.perf_counter()  # this process is older
    evaluation = trainer.fit()
    assert 1.0 <= trainer.run.meter.seconds < 6.0 and 1 < trainer.run.step < 100_000 and evaluation
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (
        summary["stopped_by"] == "max_time 1s has passed" and summary["steps"] == trainer.run.step
    )
    log = (tmp_path / "run" / "log.txt").read_text()
    assert f"stopped at step {trainer.run.step} of 100000 (max_time 1s has passed)" in log
    assert [path.name for path in (tmp_path / "run" / "checkpoints").iterdir()] == [
        f"step-{trainer.run.step:08}"
    ]


@pytest.mark.parametrize("whole", [True, False])
def test_a_callback_that_leaves_the_model_in_evaluation_mode_changes_nothing(
    whole: bool, tmp_path: Path
) -> None:
    modes: list[tuple[bool, bool]] = []

    class Held(Plain):
        def build_model(self) -> nn.Module:
            model = nn.Sequential(nn.Linear(8, 1), nn.BatchNorm1d(1))
            model[1].eval()
            return model

        def training_step(self, model: Any, batch: Any) -> Any:
            if torch.is_grad_enabled():
                modes.append((model.training, model[1].training))
            return super().training_step(model, batch)

    class Evaluates(Callback):
        def on_step(self, trainer: Run, info: StepInfo) -> None:
            (trainer.model if whole else unwrapped(trainer.model)).eval()

    Trainer(
        Held(), replace(configured(tmp_path / "run"), max_steps=5), callbacks=[Evaluates()]
    ).fit()
    assert len(modes) > 3 and {*modes} == {(True, False)}


def test_fit_works_in_a_thread(tmp_path: Path) -> None:
    found: list[object] = []

    def work() -> None:
        found.append(Trainer(Plain(), configured(tmp_path / "run")).fit())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [{"eval/loss": pytest.approx(11.8, abs=1.0)}]


def test_the_weight_of_a_step_is_asked_before_its_first_forward_pass_and_read_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[str] = []

    class Tokens(Plain):
        def weight(self, batch: Any) -> int:
            return len(batch["x"])

        def training_step(self, model: Any, batch: Any) -> Any:
            events.append("forward")
            return super().training_step(model, batch)

    real = Agreement.begin_sum

    def begin_sum(self: Agreement, value: float) -> Callable[[], float]:
        result = real(self, value)
        events.append("ask")
        return lambda: events.append("read") or result()  # type: ignore[func-returns-value]

    monkeypatch.setattr(Agreement, "begin_sum", begin_sum)
    config = replace(configured(tmp_path), accumulation_steps=2, keep_last=0, max_steps=1)
    trainer = Trainer(Tokens(), config)
    events.clear()
    for _ in trainer.steps():
        break
    assert events[:4] == ["ask", "forward", "read", "forward"]
