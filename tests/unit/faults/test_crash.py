"""The stack that a process leaves where C++ ends it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from launchers import ROOT, clean_environment

from trainer.faults.board import Row
from trainer.faults.crash import Crashes, crash_of


def test_the_stack_of_a_crash_is_the_one_of_the_thread_that_crashed(tmp_path: Path) -> None:
    file = tmp_path / "crash"
    code = (
        "import faulthandler, os, sys, threading\n"
        f"faulthandler.enable(open({str(file)!r}, 'w'))\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "def falls(): os.abort()\n"
        "falls()\n"
    )
    subprocess.run([sys.executable, "-c", code], check=False, stderr=subprocess.DEVNULL)
    row = Row(count=1, step=1, phase="", unmoved=0.0, doing="", crash=str(file))
    text = crash_of(row)
    assert text.startswith("Fatal Python error: Aborted\nCurrent thread ")
    assert "in falls" in text and "threading.py" not in text and not file.exists()
    assert crash_of(row) == "", "it was read"


def test_a_stack_is_in_each_message_though_its_file_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "crash"
    file.write_text("Fatal Python error: Aborted\n\nCurrent thread 1:\n  in f\n\nmodules")
    row = Row(count=1, step=1, phase="", unmoved=0.0, doing="", crash=str(file))
    crashes = Crashes()
    crashes.read(1, row)
    crashes.read(1, row)
    crashes.read(2, Row(count=1, step=1, phase="", unmoved=0.0, doing=""))
    expected = "Fatal Python error: Aborted\nCurrent thread 1:\n  in f"
    assert crashes.text() == expected == crashes.text() and not file.exists()


USES_A_FILE = """
import faulthandler, sys
from trainer.faults.crash import CrashFile
if sys.argv[1] == "own":
    faulthandler.enable()
file = CrashFile()
print(bool(file.path), faulthandler.is_enabled())
file.close()
print(faulthandler.is_enabled())
"""


def test_a_script_keeps_the_fault_handler_that_it_enabled_itself() -> None:
    def printed(word: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", USES_A_FILE, word],
            cwd=ROOT,
            env=clean_environment({"PYTHONFAULTHANDLER": ""}),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    assert printed("none") == ["True", "True", "False"]
    assert printed("own") == ["False", "True", "True"]
