"""Names of trackers, keys that contradict each other, what is logged, and secrets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker
from brought_tasks import Gated
from one_process import fit, log_of
from origins import origin

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


class Client(GeneralTracker):
    """A tracker that remembers its calls, and fails in those that the test names."""

    requires_logging_directory = False
    tracker = "the client's own object"
    name = "tensorboard"
    fails: str
    made: list[Client]

    def __init__(self, project: str) -> None:
        super().__init__()
        self.logged: dict[int | None, dict[str, Any]] = {}
        self.finished = 0
        self.made.append(self)

    def start(self) -> None:
        if self.fails == "start":
            raise ConnectionError("refused\nand more")

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        self.configuration = values

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.logged[step] = values
        assert self.finish in exit_module._last_work, "a job that fails saves the data"
        if self.fails == "log" and step == 2:
            raise ConnectionError("refused\nand more")

    def finish(self) -> None:
        self.finished += 1
        if self.fails == "finish":
            raise StopIteration


def tracked(folder: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> Client:
    """Train four steps with a tracker that fails."""
    of_test = type("OfTest", (Client,), {"fails": fails, "made": []})
    monkeypatch.setitem(LOGGER_TYPE_TO_CLASS, "tensorboard", of_test)
    task = Gated(hf_token="a secret of the task")
    fit(folder, task, max_steps=4, eval_every=4, save_every=None, trackers=["tensorboard"])
    [client] = of_test.made
    return client


def test_a_tracker_that_fails_is_a_notice_and_gets_no_more_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tracked(tmp_path, monkeypatch, "log")
    assert (
        "tensorboard: did not take step 2 (ConnectionError: refused); the tracker gets no more "
        "steps, metrics.jsonl has every value\n"
    ) in log_of(tmp_path)
    assert list(client.logged) == [1, 2] and client.finished == 1
    assert isinstance(client.configuration["task_settings"], str), "text, but for W&B"
    assert "a secret" not in str(client.configuration)


def test_a_tracker_has_every_value_and_a_notice_if_it_does_not_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = tracked(tmp_path, monkeypatch, "finish")
    values = client.logged[4]
    assert {"step", "epoch", "samples", "train/loss", "train/lr", "eval/loss"} < values.keys()
    assert not {"train/step", "train/epoch", "loss"} & values.keys()
    assert "tensorboard: did not end its run: StopIteration\n" in log_of(tmp_path)
    assert client.finish not in exit_module._last_work


def test_a_tracker_that_does_not_start_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(TrainerError, match=r"^trackers: tensorboard does not start: .*refused$"):
        tracked(tmp_path, monkeypatch, "start")
