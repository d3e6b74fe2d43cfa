"""What the README has people paste, and what ``trainer new`` writes, run as they stand."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from launchers import BIN, ROOT, clean_environment


def run(words: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words,
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


def test_the_task_of_the_readme_trains(tmp_path: Path) -> None:
    """Pasted whole, and started by the line below it."""
    readme = (ROOT / "README.md").read_text()
    found = re.search(
        r"```python\n(# mytask\.py\n.*?)```\n```\n(accelerate launch .*?)\n```", readme, re.DOTALL
    )
    assert found is not None
    (tmp_path / "mytask.py").write_text(found[1])
    (tmp_path / "accel_configs").symlink_to(ROOT / "accel_configs")
    program, launch, *rest = shlex.split(found[2])
    done = run([str(BIN / program), launch, "--main_process_port", "0", *rest], tmp_path)
    assert done.returncode == 0, done.stderr[-4000:]
    folder = tmp_path / "runs" / "default"
    plan = json.loads((folder / "plan.json").read_text())
    assert (plan["strategy"], plan["world_size"]) == ("fsdp", 2)
    assert json.loads((folder / "summary.json").read_text())["evaluation"]["eval/accuracy"] > 0.8


@pytest.mark.slow
def test_the_test_that_new_writes_passes(tmp_path: Path) -> None:
    """On all five strategies, as somebody would run it after the command."""
    assert run([str(BIN / "trainer"), "new", "demo"], tmp_path).returncode == 0
    done = run(
        [sys.executable, "-m", "pytest", "test_task.py", "-q", "-p", "no:cacheprovider"],
        tmp_path / "demo",
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "5 passed" in done.stdout
