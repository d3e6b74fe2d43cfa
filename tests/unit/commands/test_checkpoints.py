"""``trainer checkpoints``: the list and its verdicts."""

from __future__ import annotations

from pathlib import Path

import pytest
from one_process import checkpoint, fit

from trainer.commands import cli


def test_the_list_of_checkpoints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path)
    assert cli.main(["checkpoints", str(tmp_path)]) == 0
    path = checkpoint(tmp_path, 6) / "rank-00000.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    capsys.readouterr()
    assert cli.main(["checkpoints", str(tmp_path)]) == 0, "sizes are right"
    assert cli.main(["checkpoints", str(tmp_path / "checkpoints"), "--verify"]) == 1
    lines = capsys.readouterr().out.splitlines()[-5:]
    assert lines[0].split() == ["checkpoint", "strategy", "world", "size", "created", "state"]
    assert lines[1].split()[:3] == ["step-00000008", "single", "1"] and lines[1].endswith(
        "complete"
    )
    assert lines[2].endswith("damaged: rank-00000.safetensors was changed after it was written")
    assert cli.main(["checkpoints", str(tmp_path / "model")]) == 2
    assert "holds no checkpoints" in capsys.readouterr().err
