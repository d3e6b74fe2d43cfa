"""Checkpoints during training, and at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from one_process import fit, steps

from trainer import Callback, CheckpointError, Run, StepInfo


class Holds(Callback):
    """Holds a state that no checkpoint takes from a step on."""

    def __init__(self, since: int) -> None:
        self.since = since
        self.state: Any = 1

    def on_step(self, run: Run, info: StepInfo) -> None:
        self.state = {1} if info.step >= self.since else 1

    def state_dict(self) -> Any:
        return {"value": self.state}


@pytest.mark.parametrize(("since", "is_exported"), [(3, False), (7, True)])
def test_the_model_is_exported_if_the_last_save_fails(
    since: int, is_exported: bool, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=r"was not saved: .*Holds"):
        fit(tmp_path, None, Holds(since))
    assert steps(tmp_path)[0] == since - 1
    assert (tmp_path / "model/model.safetensors").is_file() == is_exported
