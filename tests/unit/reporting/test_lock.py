"""The lock of a run's folder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from one_process import fit
from run_folders import another_run

from trainer.reporting.lock import LOCK, FolderLock, Locked


def test_a_child_that_outlives_the_run_holds_no_lock(tmp_path: Path) -> None:
    """Forked data workers look every five seconds whether their parent is there; a restart must not
    wait for them.
    """
    with another_run(tmp_path, "leave a child") as held:
        assert held.stdout is not None
        child = int(held.stdout.readline())
        held.wait()
        try:
            FolderLock(tmp_path).close()
        finally:
            os.kill(child, 9)


def test_the_lock_stays_when_the_folder_is_copied_and_when_a_child_ends(tmp_path: Path) -> None:
    """A callback that copies the run away, or an upload, closes the lock's file; a data worker ends
    before the run.
    """
    run = tmp_path / "run"
    run.mkdir()
    lock = FolderLock(run)
    shutil.copytree(run, tmp_path / "copy")
    (run / LOCK).read_text()
    child = os.fork()
    if not child:
        os._exit(0)
    os.waitpid(child, 0)
    with another_run(run) as refused:
        assert refused.wait(60) != 0, "the lock is still held"
    lock.close()
    FolderLock(run).close()


def test_trainings_of_one_process_share_the_lock(tmp_path: Path) -> None:
    first = fit(tmp_path, max_steps=2)
    assert fit(tmp_path, max_steps=4, resume="auto").step == 4 and first.step == 2


def test_a_link_in_place_of_the_lock_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / LOCK).symlink_to(tmp_path / "mine")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        fit(tmp_path / "run")
    assert (tmp_path / "mine").read_text() == "mine"


def test_the_error_names_the_process_that_has_the_lock(tmp_path: Path) -> None:
    with another_run(tmp_path) as held:
        assert held.stdout is not None and held.stdout.readline()
        with pytest.raises(Locked, match=f"process {held.pid} on "):
            FolderLock(tmp_path)
