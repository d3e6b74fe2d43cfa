"""State that users keep in checkpoints: what is saved and comes back, and what is refused before
the first step.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_process import checkpoint, fit, losses, reseal, rows, steps
from refusing import refused
from resuming import Odd
from torch import Tensor

from trainer import Callback, CheckpointError, Data, Run, StepInfo
from trainer.checkpoint import store
from trainer.checkpoint.codec import encode
from trainer.checkpoint.decode import decode

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def test_state_is_json_and_tensors() -> None:
    tensors: dict[str, Tensor] = {}
    value = {"a": [1, 2.5, None, "x", True], "b": {"t": torch.eye(2)}, "c": float("-inf")}
    text = json.dumps(encode(value, tensors, "me"), allow_nan=False)
    back = decode(json.loads(text), tensors.__getitem__)
    assert torch.equal(back["b"].pop("t"), torch.eye(2)) and value["b"].pop("t") is not None
    assert back == value
    with pytest.raises(CheckpointError, match=r"me.f: \{1\} is neither JSON nor a tensor"):
        encode({"f": {1}}, {}, "me")


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
    assert steps(tmp_path / "later") == [4, 2] and len(rows(tmp_path / "later")) == 8
    assert not list((tmp_path / "later" / "checkpoints").glob(".*"))
    with pytest.raises(
        CheckpointError,
        match=r"the checkpoint of step 6 was not saved: Holds.value: \{1\} is neither",
    ):
        fit(tmp_path / "stop", Odd(), Holds(1, {1}, since=5))
    assert steps(tmp_path / "stop") == [4, 2]
    assert (tmp_path / "later" / "model" / "model.safetensors").is_file()


def test_numbers_of_numpy_and_tuples_come_back(tmp_path: Path) -> None:
    value = (
        np.int64(3),
        [np.float32(0.5), np.bool_(True)],
        (1, (2.0, "x"), ()),
        {"inf": (np.float64("inf"),)},
    )
    fit(tmp_path / "run", Odd(), Holds(value), max_steps=2)
    again = Holds(None)
    fit(tmp_path / "new", Odd(), again, max_steps=4, resume=str(checkpoint(tmp_path / "run", 2)))
    assert repr(again.got) == "(3, [0.5, True], (1, (2.0, 'x'), ()), {'inf': (inf,)})"


def test_lists_of_checkpoints_before_tuples_were_kept_still_load(tmp_path: Path) -> None:
    fit(tmp_path / "run", Odd(), Holds((1, [2])), max_steps=2)
    path = checkpoint(tmp_path / "run", 2) / store.STATE
    former = (
        path.read_text().replace(" ", "").replace("\n", "").replace('{"$tuple":[1,[2]]}', "[1,[2]]")
    )
    assert "$tuple" in path.read_text() and "$tuple" not in former
    path.write_text(former)
    reseal(path.parent)
    again = Holds(None)
    fit(tmp_path / "new", Odd(), again, max_steps=4, resume=str(path.parent))
    assert again.got == [1, [2]]


class Drawn:
    """A stream with a generator of Python's own, whose state is made of tuples."""

    def __init__(self) -> None:
        self.draw = random.Random(0)

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield torch.tensor([self.draw.randrange(7) for _ in range(6)])

    def state_dict(self) -> dict[str, Any]:
        return {"draw": self.draw.getstate()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.draw.setstate(state["draw"])


class DrawnTask(Odd):
    def build_data(self) -> Data:
        return Data(train=Drawn())


def test_a_stream_with_tuples_in_its_state_resumes(tmp_path: Path) -> None:
    fit(tmp_path / "run", DrawnTask())
    fit(tmp_path / "new", DrawnTask(), resume=str(checkpoint(tmp_path / "run", 4)))
    assert losses(tmp_path / "new") == {
        step: loss for step, loss in losses(tmp_path / "run").items() if step > 4
    }
