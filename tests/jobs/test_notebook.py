"""The notebook of examples/clusters: its cells run from top to bottom, on two processes as on one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launchers import ROOT, clean_environment, free_port


def trained(folder: Path, processes: int) -> dict[int, float]:
    """Run the cells in a folder, as one script, and return the losses by step."""
    cells = json.loads((ROOT / "examples" / "clusters" / "notebook.ipynb").read_text())["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    code = "\n".join(line for line in code.splitlines() if not line.startswith("%"))
    call = "num_processes=2)"
    assert code.count(call) == 1
    code = code.replace(call, f'num_processes={processes}, use_port="{free_port()}")')
    folder.mkdir()
    (folder / "cells.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "cells.py"], cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert "accuracy 0." in done.stdout
    plan = json.loads((folder / "runs" / "notebook" / "plan.json").read_text())
    assert plan["world_size"] == processes
    rows = [
        json.loads(line)
        for line in (folder / "runs" / "notebook" / "metrics.jsonl").read_text().splitlines()
    ]
    return {row["step"]: row["loss"] for row in rows if "loss" in row}


@pytest.mark.slow
def test_a_notebook_learns_the_same_on_two_processes(tmp_path: Path) -> None:
    one, two = trained(tmp_path / "one", 1), trained(tmp_path / "two", 2)
    assert len(one) == 69 and list(two) == list(one)
    assert list(two.values()) == pytest.approx(list(one.values()), abs=2e-5)
