"""What a process says of its main thread."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable

import pytest

from trainer.distributed import agreement
from trainer.faults.waits import Doing, collectives_begun, doing, waits_outside


def doing_of(work: Callable[[], object]) -> Doing:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    time.sleep(0.3)
    return doing(thread.ident or 0, thread.native_id or 0)


@pytest.mark.parametrize("timeout", [None, 5.0])
def test_an_answer_is(timeout: float | None) -> None:
    ours, theirs = socket.socketpair()
    ours.settimeout(timeout)
    with ours, theirs:
        found = doing_of(lambda: ours.recv(1))
        theirs.send(b"x")
        time.sleep(0.2)
    assert found.outside.startswith("system call")


def test_a_pipe_a_process_and_a_sleep_are() -> None:
    source, sink = os.pipe()
    with subprocess.Popen(["sleep", "20"]) as child:
        for work in (lambda: os.read(source, 1), child.wait, lambda: time.sleep(2)):
            assert doing_of(work).outside.startswith("system call")
        os.write(sink, b"x")
        child.kill()
    os.close(sink)


def test_what_says_that_it_waits_outside_does() -> None:
    event = threading.Event()
    with waits_outside("a disk"):
        assert doing_of(event.wait).outside == "a disk"
    assert doing_of(event.wait).outside == ""
    event.set()


def test_a_wait_for_other_ranks_in_the_agreement_is_in_a_collective() -> None:
    scope: dict[str, Callable[[threading.Lock], None]] = {}
    code = "def gather(lock):\n    lock.acquire()"  # waits in C, as the real one does
    exec(compile(code, agreement.__file__, "exec"), scope)
    lock = threading.Lock()
    with lock:
        found = doing_of(lambda: scope["gather"](lock))
    assert found.in_collective and found.outside == ""


def test_doing_names_the_own_line() -> None:
    event = threading.Event()

    def waits_here() -> None:
        event.wait()

    found = doing_of(waits_here)
    event.set()
    assert found.text.startswith("waits_here (") and os.path.basename(__file__) in found.text


def test_a_group_that_counts_nothing_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Group:
        def __init__(self, name: str, desc: str, count: int | None) -> None:
            self.group_name, self.group_desc, self.count = name, desc, count

        def _get_sequence_number_for_group(self) -> int:
            if self.count is None:
                raise RuntimeError("Backend fake does not implement getSequenceNumberForGroup")
            return self.count

    groups = [
        Group("0", "default_pg", 7),
        Group("1", "undefined", 3),
        Group("2", "fake", None),
    ]
    monkeypatch.setattr("trainer.private.torch.process_groups", lambda: groups)
    assert collectives_begun() == {"0": ("default_pg", 7), "1": ("1", 3)}
