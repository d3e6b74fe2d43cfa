"""Names of trackers, keys that contradict each other, what is logged, and secrets."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.tracking import GeneralTracker
from fake_run import fake_run, step_info
from origins import origin

from trainer.callbacks import tracking
from trainer.callbacks.tracking import Tracking, tracked_values
from trainer.config.train_config import TrainConfig
from trainer.distributed import exit as exit_module
from trainer.errors import ConfigError, TrainerError
from trainer.row import row_of


@pytest.mark.parametrize("name", ["wandbb", "comet_ml"])
def test_a_tracker_that_is_unknown_or_not_installed_is_an_error(name: str) -> None:
    origins = {"trackers": origin("train.yaml:3 (trackers)")}
    rule = f"train.yaml:3: trackers: '{name}': no tracker of Accelerate whose package is installed"
    with pytest.raises(ConfigError, match=f"{rule}; there are .*wandb"):
        row_of(TrainConfig(task="a:B", max_steps=1, trackers=[name]), [], origins)


def test_a_tracker_gets_the_axes_once_and_training_and_evaluation_by_their_prefixes() -> None:
    metrics = {"step": 3, "epoch": 0.5, "samples": 24, "loss": 1.5, "lr": 0.1}
    info: Any = SimpleNamespace(
        step=3, epoch=0.5, samples=24, metrics=metrics, evaluation={"eval/loss": 2.0}
    )
    axes = {"step": 3, "epoch": 0.5, "samples": 24}
    assert tracked_values(info) == {**axes, "eval/loss": 2.0, "train/loss": 1.5, "train/lr": 0.1}
    info.metrics = None
    assert tracked_values(info) == {**axes, "eval/loss": 2.0}


class Client(GeneralTracker):
    """A tracker that remembers its calls, and fails in those that the test names."""

    requires_logging_directory = False
    tracker = "the client's own object"
    name = "mlflow"

    def __init__(self, project: str, run_name: str) -> None:
        super().__init__()
        self.run_name = run_name
        self.steps: list[int | None] = []
        self.fails = ""
        self.finished = 0

    def start(self) -> None:
        if self.fails == "start":
            raise ConnectionError("refused\nand more")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.configuration = values

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.steps.append(step)
        if self.fails == "log":
            raise ConnectionError("refused\nand more")

    def finish(self) -> None:
        self.finished += 1
        if self.fails == "finish":
            raise StopIteration


@pytest.fixture
def tracked(monkeypatch: pytest.MonkeyPatch) -> tuple[Tracking, Client, Any]:
    """The hook, a tracker that it starts, and the run."""
    client = Client("samecurve", "a b")
    monkeypatch.setattr(tracking, "new_tracker", lambda name, run: client)
    monkeypatch.setattr(tracking, "get_available_trackers", lambda: ["mlflow"])
    hook = Tracking(["mlflow"], origin=origin("train.yaml:3 (trackers)"))
    run = fake_run(
        config=TrainConfig(task="a:B", max_steps=9, task_settings={"nested": {"a": 1}}),
        name="a b",
        facts={"strategy": "ddp"},
        accelerator=SimpleNamespace(trackers=[]),
        meter=SimpleNamespace(paused=lambda name: contextlib.nullcontext()),
    )
    return hook, client, run


def log(hook: Tracking, run: Any, *steps: int) -> None:
    for step in steps:
        hook.on_step(run, step_info(step, metrics={"step": step, "loss": 1.0}))


def test_a_tracker_that_fails_is_a_notice_and_gets_no_more_steps(tracked: Any) -> None:
    hook, client, run = tracked
    run.facts["api_key"] = "a secret"
    log(hook, run, 1)
    client.fails = "log"
    log(hook, run, 2, 3)
    assert run.said == [
        "mlflow: did not take step 2 (ConnectionError: refused); the tracker gets no more steps, "
        "metrics.jsonl has every value"
    ]
    assert client.steps == [1, 2]
    assert client.configuration["task_settings"] == "{'nested': {'a': 1}}", "text, but for W&B"
    assert client.configuration["api_key"] == "(hidden)"


def test_a_tracker_that_does_not_start_is_an_error_and_one_that_does_not_end_a_notice(
    tracked: Any,
) -> None:
    hook, client, run = tracked
    client.fails = "start"
    with pytest.raises(TrainerError, match=r"^trackers: mlflow does not start: .*refused$"):
        log(hook, run, 1)
    client.fails = "finish"
    log(hook, run, 2)
    hook.on_end(run, {})
    assert client.finished == 1 and run.said == ["mlflow: did not end its run: StopIteration: "]


def test_a_job_that_fails_saves_the_trackers_data_until_the_tracker_has_finished(
    tracked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(exit_module, "_last_work", registered)
    hook, client, run = tracked
    log(hook, run, 1)
    assert registered == [client.finish]
    hook.on_end(run, {})
    assert registered == [] and client.finished == 1
