"""The message of a job whose ranks do not go on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from trainer.faults.board import Row, Who
from trainer.faults.identity import Identity
from trainer.faults.observation import Address
from trainer.faults.report import crash_of, report_text

ROW = Row(count=3, step=5, phase="data", unmoved=9.0, doing="f (a.py:1)", begun={"0": ("world", 4)})


def who(pid: int) -> Who:
    return Who(host="node1", identity=Identity("here", pid, 1), observer=Address("", 1, ""))


def test_the_message_says_who_what_and_how_to_go_on() -> None:
    text = report_text(
        {1: "stands still"}, {0: ROW}, {0: who(17), 1: who(18)}, crashes="", advice="go on"
    )
    _, head, first, second, told, advice = text.splitlines()
    assert head.split() == ["rank", "host", "pid", "step", "phase", "doing", "collectives", "begun"]
    assert first.split() == ["0", "node1", "17", "5", "data", "f", "(a.py:1)", "world", "4"]
    assert second.split() == ["1", "node1", "18", "?", "?", "?", "?"], "it never wrote"
    assert (told, advice) == ("rank 1 stands still", "go on")


def test_rows_come_back_as_they_were_written() -> None:
    import json
    from dataclasses import asdict, replace

    from trainer.faults.observation import Report

    row = replace(ROW, report=Report(idle=3.0, stopped_children={"7": 2.0}), begun={})
    assert Row.read(json.dumps(asdict(row))) == row
    assert Who.read(json.dumps(asdict(who(5)))) == who(5)


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
    text = crash_of(Row(count=1, step=1, phase="", unmoved=0.0, doing="", crash=str(file)))
    assert text.startswith("Fatal Python error: Aborted\nCurrent thread ")
    assert "in falls" in text and "threading.py" not in text and not file.exists()
    assert (
        crash_of(ROW)
        == ""
        == crash_of(Row(count=1, step=1, phase="", unmoved=0.0, doing="", crash=str(file)))
    )
