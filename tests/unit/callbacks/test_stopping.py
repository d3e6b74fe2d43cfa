"""The last step of a run: its length, a signal, or a stop that code asked for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from launchers import json_in
from one_process import fit


def test_stop_at_ends_a_run_before_the_last_step_of_its_schedule(tmp_path: Path) -> None:
    def stopped_by(**settings: Any) -> tuple[int, str | None]:
        fit(tmp_path, max_steps=4, **settings)
        summary = json_in(tmp_path / "summary.json")
        return summary["steps"], summary["stopped_by"]

    assert stopped_by(stop_at=2) == (2, "stop_at 2")
    (tmp_path / "summary.json").unlink()
    shutil.rmtree(tmp_path / "model")
    assert stopped_by(stop_at=2, resume="auto") == (2, "stop_at 2"), "a resumed run without a step"
    # The end of the schedule is no early end.
    assert stopped_by(stop_at=4, resume="auto") == (4, None)
