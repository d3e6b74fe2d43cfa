"""The message of a job whose ranks do not go on."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from trainer.faults import report
from trainer.faults.board import Row, Who
from trainer.faults.identity import Identity
from trainer.faults.observation import Address
from trainer.faults.report import report_text, resume_command

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


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (
            ["/usr/bin/python3", "/usr/bin/torchrun", "train.py"],
            "torchrun train.py --resume auto",
        ),
        (["torchrun", "train.py", "--resume", "auto"], "torchrun train.py --resume auto"),
        (
            ["/usr/bin/python3", "-m", "torch.distributed.run", "train.py"],
            "/usr/bin/python3 -m torch.distributed.run train.py --resume auto",
        ),
    ],
)
def test_the_command_to_resume_is_the_launcher_s(
    command: list[str], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = SimpleNamespace(cmdline=lambda: command)
    monkeypatch.setattr(report, "launcher_processes", lambda: [launcher])
    assert resume_command("--resume auto") == expected
