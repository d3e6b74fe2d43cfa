"""``trainer new``: what it writes is in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from launchers import ROOT

from trainer.commands.cli import main


def test_new_folder_is_in_order_and_never_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my demo"]) == 0
    *_, command = capsys.readouterr().out.splitlines()
    assert command.startswith("cd 'my demo' && ") and command.endswith(
        " -m trainer train --config train.yaml"
    )
    folder = tmp_path / "my demo"
    for name in ("accel_configs", "ds_configs"):
        ours, theirs = (
            {file.name: file.read_text() for file in at.iterdir()}
            for at in (ROOT / name, folder / name)
        )
        assert ours == theirs
    (folder / "task.py").write_text("# mine")
    assert main(["new", "my demo"]) == 2
    assert "File exists: 'my demo'" in capsys.readouterr().err
    assert (folder / "task.py").read_text() == "# mine"
