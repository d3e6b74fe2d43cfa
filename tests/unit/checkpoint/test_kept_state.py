"""State that users keep in checkpoints: what is saved and comes back, and what is refused before
the first step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launchers import json_in
from one_process import checkpoint, fit, rows, steps
from refusing import refused
from resuming import Odd

from trainer import Callback, CheckpointError, Run, StepInfo
from trainer.checkpoint import store

# -- state of callbacks, tasks and streams ---------------------------------------------------------


class Holds(Callback):
    """Has a state, and from some step on another one."""

    def __init__(self, value: Any, later: Any = None, since: int = 99) -> None:
        self.value, self.later, self.since, self.got = value, later, since, None

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        if info.step >= self.since:
            self.value = self.later

    def state_dict(self) -> Mapping[str, Any]:
        return {"value": self.value}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.got = state["value"]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({1, 2}, r"Holds.value: \{1, 2\} is neither JSON nor a tensor"),
        ({3: "x"}, r"Holds.value: \{3: 'x'\} is neither"),
        (
            torch.ones(1, dtype=torch.complex64),
            r"Holds.value: tensor.*1.* is neither",
        ),
        (np.datetime64("2026-11-21"), r"Holds.value: datetime.date.* is neither"),
    ],
    ids=["set", "key", "complex", "date"],
)
def test_state_that_cannot_be_saved_is_refused_before_the_first_step(
    value: Any, said: str, tmp_path: Path
) -> None:
    refused(tmp_path / "stop", said, Odd(), Holds(value))
    refused(tmp_path / "continue", said, Odd(), Holds(value), on_save_error="continue")
    fit(tmp_path / "none", Odd(), Holds(value), keep_last=0, save_every=None)


def test_state_that_can_be_saved_no_more_follows_on_save_error(tmp_path: Path) -> None:
    fit(tmp_path / "later", Odd(), Holds(1, {1}, since=5), on_save_error="continue")
    assert len(rows(tmp_path / "later")) == 8
    said = (
        r"the checkpoint of step 6 was not saved: .*state.callbacks.Holds.value: \{1\} is neither"
    )
    with pytest.raises(CheckpointError, match=said):
        fit(tmp_path / "stop", Odd(), Holds(1, {1}, since=5))
    for name in ("later", "stop"):
        assert steps(tmp_path / name) == [4, 2]
        assert not list((tmp_path / name / "checkpoints").glob(".*"))


def test_numbers_of_numpy_tuples_and_tensors_come_back(tmp_path: Path) -> None:
    value = (np.int64(3), [np.float32(0.5), np.bool_(True)], (1, (2.0, "x"), ()))
    more = {"inf": (np.float64("inf"),), "total": torch.arange(3)}
    fit(tmp_path / "run", Odd(), Holds([value, more]), Holds(7), max_steps=2)
    kept = json_in(checkpoint(tmp_path / "run", 2) / store.STATE)["callbacks"]
    assert list(kept) == ["Holds", "Holds#2"]
    again, second = Holds(None), Holds(None)
    resume = str(checkpoint(tmp_path / "run", 2))
    fit(tmp_path / "new", Odd(), again, second, max_steps=4, resume=resume)
    assert repr(again.got) == (
        "[(3, [0.5, True], (1, (2.0, 'x'), ())), {'inf': (inf,), 'total': tensor([0, 1, 2])}]"
    )
    assert second.got == 7
