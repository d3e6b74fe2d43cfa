"""A tracker whose server is gone is left alone for a while, and the others are not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from accelerate.tracking import GeneralTracker

from trainer.callbacks import tracker_faults
from trainer.callbacks.tracker_faults import TolerantTracker
from trainer.distributed import exit as exit_module
from trainer.errors import TrainerError


class Client(GeneralTracker):
    """A tracker that remembers its calls, and fails in those that the test names."""

    requires_logging_directory = False
    tracker = "the client's own object"

    def __init__(self, name: str = "mlflow") -> None:
        self.name = name
        super().__init__()
        self.steps: list[int | None] = []
        self.configuration: dict[str, Any] = {}
        self.fails = False
        self.finished = 0

    def start(self) -> None:
        if self.fails:
            raise ConnectionError("refused\nand more")

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.configuration = values

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.steps.append(step)
        if self.fails:
            raise ConnectionError("refused\nand more")

    def finish(self) -> None:
        self.finished += 1
        if self.fails:
            raise StopIteration


def tolerant(client: Client, said: list[str]) -> TolerantTracker:
    return TolerantTracker(client, said.append, on_failure=client.finish)


def test_a_failure_is_reported_once_and_logging_is_tried_again_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [100.0]
    said: list[str] = []
    monkeypatch.setattr(tracker_faults, "time", SimpleNamespace(monotonic=lambda: now[0]))
    alive = Client("tensorboard")

    class SlowClient(Client):
        def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
            self.fails = step is not None and step < 9
            if self.fails:
                now[0] += 5  # the client's own attempts
            super().log(values, step)

    dead = SlowClient()
    trackers = [tolerant(dead, said), tolerant(alive, said)]
    # A call that failed after 5 s is followed by 100 s without one: 20 times as long.
    for step in range(1, 14):
        now[0] = 100.0 + 20 * step
        for tracker in trackers:
            tracker.log({"loss": 1.0}, step=step)

    assert alive.steps == [*range(1, 14)]
    assert dead.steps == [1, 7, 13]
    assert len(said) == 2
    assert said[0] == (
        "mlflow: did not take step 1 (ConnectionError: refused); metrics.jsonl has every value; "
        "training continues; next try in 100 s"
    )


def test_a_failure_at_the_end_promises_no_other_try() -> None:
    said: list[str] = []
    client = Client()
    tracker = tolerant(client, said)
    tracker.start()
    client.fails = True
    tracker.finish()
    assert said == [
        "mlflow: did not take the end of the run (StopIteration: ); metrics.jsonl has every value"
    ]


def test_a_tracker_that_does_not_start_is_an_error_that_names_it() -> None:
    client = Client()
    client.fails = True
    with pytest.raises(TrainerError, match=r"^trackers: mlflow does not start: refused$"):
        tolerant(client, []).start()


def test_a_job_that_fails_saves_the_trackers_data_until_the_tracker_has_finished(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(exit_module, "_last_work", registered)
    client = Client()
    tracker = tolerant(client, [])
    tracker.start()
    assert registered == [client.finish]
    tracker.finish()
    assert registered == [] and client.finished == 1


@pytest.mark.parametrize(("name", "kept"), [("wandb", {"a": 1}), ("mlflow", "{'a': 1}")])
def test_nested_configuration_values_are_text_but_for_wandb(name: str, kept: Any) -> None:
    client = Client(name)
    tolerant(client, []).store_init_configuration({"lr": 0.1, "nested": {"a": 1}, "none": None})
    assert client.configuration == {"lr": 0.1, "nested": kept, "none": None}


def test_the_clients_own_object_is_reached_through_the_wrapper() -> None:
    assert tolerant(Client(), []).tracker == "the client's own object"
