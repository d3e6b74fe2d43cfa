"""A tracker whose server is gone is let alone for a while, and the others are not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainer.callbacks import tracker_faults
from trainer.callbacks.tracker_faults import Patience


def test_what_fails_is_said_once_and_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    now, said, asked = [100.0], list[str](), list[tuple[str, int]]()
    monkeypatch.setattr(tracker_faults, "time", SimpleNamespace(monotonic=lambda: now[0]))
    patience = Patience(said.append)
    dead, alive = SimpleNamespace(name="mlflow"), SimpleNamespace(name="tensorboard")

    def refuse(step: int) -> None:
        asked.append(("mlflow", step))
        if step < 9:
            now[0] += 5  # the client's own attempts
            raise ConnectionError("refused\nand more")

    # From 5 s on it is let alone for 100 s: 20 times as long.
    for step in range(1, 14):
        now[0] = 100.0 + 20 * step
        patience.call(dead, lambda step=step: refuse(step), f"step {step}")
        patience.call(alive, lambda step=step: asked.append(("tensorboard", step)), f"step {step}")
    assert [step for name, step in asked if name == "tensorboard"] == [*range(1, 14)]
    assert [step for name, step in asked if name == "mlflow"] == [1, 7, 13]
    assert len(said) == 2
    assert said[0] == (
        "mlflow: did not take step 1 (ConnectionError: refused); metrics.jsonl has every value; "
        "training goes on, and tries again in 100 s"
    )


def test_at_the_end_nothing_is_promised() -> None:
    said = list[str]()
    mlflow = SimpleNamespace(name="mlflow")
    Patience(said.append).call(mlflow, lambda: next(iter(())), "the end of the run", again=False)
    assert said == [
        "mlflow: did not take the end of the run (StopIteration: ); metrics.jsonl has every value"
    ]
