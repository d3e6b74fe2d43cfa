"""The attempts of a run: what cannot be read stops no run."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer.reporting.attempts import FILE, Attempts
from trainer.reporting.directory import RunDirectory


@pytest.mark.parametrize("text", ["", "[", "3", "null"])
def test_a_file_that_is_no_list_of_attempts_is_begun_anew(text: str, tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(text)
    attempts = Attempts(RunDirectory(str(tmp_path), main=True), 1.0, 3)
    [only] = attempts.note(4, now=True)
    assert (only["first_step"], only["last_step"]) == (3, 4)


def test_attempts_of_before_are_kept_as_they_are(tmp_path: Path) -> None:
    before = '[{"started": 1.0, "seconds": 2.0, "apart": {}, "first_step": 0, "last_step": 3}]'
    (tmp_path / FILE).write_text(before)
    attempts = Attempts(RunDirectory(str(tmp_path), main=True), 1.0, 3).note(4, now=True)
    assert [attempt["last_step"] for attempt in attempts] == [3, 4]
