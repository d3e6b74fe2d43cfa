"""Files that Python takes for the package are named by the command, which is started from
elsewhere.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from launchers import BIN, ROOT, clean_environment

from trainer.commands import shadowed
from trainer.commands.cli import main

LINE = "hides samecurve's package trainer"


@pytest.mark.parametrize("name", ["trainer.py", "trainer/__init__.py"])
def test_a_file_of_that_name_here_is_told_by_every_command(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("raise SystemExit(0)  # another trainer\n")
    words = [str(BIN / "trainer"), "new", "demo"]
    done = subprocess.run(
        words,
        cwd=tmp_path,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr.startswith(f"note: {name}: {LINE}") and done.stderr.count("\n") == 1
    assert "written: demo/" in done.stdout


@pytest.mark.parametrize("folder", [ROOT, ROOT / "examples", ROOT / "tests"])
def test_our_own_is_none(folder: Path) -> None:
    assert list(shadowed.shadow_notices(folder)) == []


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_file_beside_the_script_is_a_problem(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkdir("mine")
    Path("mine/trainer.py").touch()
    Path("a.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\n")
    assert main(["check", "a.yaml", "--script", "mine/train.py"]) == 2
    assert f"mine/trainer.py: {LINE}" in capsys.readouterr().err


def test_another_distribution_is_a_problem(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        shadowed, "packages_distributions", lambda: {"trainer": ["samecurve", "speech-trainer"]}
    )
    Path("a.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 2\n")
    assert main(["check", "a.yaml"]) == 2
    assert "pip uninstall speech-trainer, and install samecurve again" in capsys.readouterr().err
