"""The attempts of a run."""

from __future__ import annotations

from pathlib import Path

from launchers import json_in
from one_process import fit

from trainer import Callback, Run, StepInfo


class Reads(Callback):
    """Reads the last step of attempts.json at each step."""

    def __init__(self) -> None:
        self.seen: dict[int, int] = {}

    def on_step(self, run: Run, info: StepInfo) -> None:
        *_, last = json_in(run.directory.path / "attempts.json")
        self.seen[info.step] = last["last_step"]


def test_the_summary_has_all_attempts_which_are_written_with_each_checkpoint(
    tmp_path: Path,
) -> None:
    reads = Reads()
    fit(tmp_path, None, reads, max_steps=6, save_every=3)
    assert (reads.seen[3], reads.seen[6]) == (3, 6)

    fit(tmp_path, max_steps=8, resume="auto")
    attempts = json_in(tmp_path / "summary.json")["attempts"]
    assert attempts == json_in(tmp_path / "attempts.json")
    assert [(row["first_step"], row["last_step"]) for row in attempts] == [(0, 6), (6, 8)]
    assert all(row["started"] > 1e9 and row["seconds"] > 0 for row in attempts)
