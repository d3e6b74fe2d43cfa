"""The folder of a run: all that is in it, and another process that holds it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launchers import ROOT, clean_environment

from trainer.reporting.lock import LOCK


def everything(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Time and content of all files; the lock says who looked at them last."""
    return {
        str(path): (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in (folder, *folder.rglob("*"))
        if path != folder / LOCK
    }


HOLD = """
import os, sys, time, pathlib
from trainer.reporting.lock import lock_folder
lock = lock_folder(pathlib.Path(sys.argv[1]))
if sys.argv[2] == "leave a child":
    if os.fork():
        os._exit(0)
    print(os.getpid(), flush=True)  # from the child: by then it has let go of what it forked with
else:
    print("locked", flush=True)
time.sleep(600)
"""


@contextmanager
def another_run(folder: Path, how: str = "stay") -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", HOLD, str(folder), how]
    held = subprocess.Popen(
        words, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, text=True
    )
    try:
        yield held
    finally:
        held.kill()
        held.wait()
        assert held.stdout is not None
        held.stdout.close()
