"""``trainer export``: a checkpoint becomes the model that the run itself exports."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_process import checkpoint, fit

from trainer.commands import cli


@pytest.mark.parametrize("average", [None, 0.9])
def test_a_checkpoint_is_exported_on_its_own(average: float | None, tmp_path: Path) -> None:
    fit(tmp_path / "run", ema_decay=average)
    last = str(checkpoint(tmp_path / "run", 8))
    assert cli.main(["export", last, "--to", str(tmp_path / "model")]) == 0
    ours, theirs = (tmp_path / name / "model.safetensors" for name in ("model", "run/model"))
    assert ours.read_bytes() == theirs.read_bytes(), "what the run itself exported"
    assert cli.main(["export", last, "--to", str(tmp_path / "model")]) == 2, "exists already"
