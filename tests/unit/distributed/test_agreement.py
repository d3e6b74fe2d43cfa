"""A signal while a rank is stuck, in a process of its own; what a group that cannot be made says."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
import torch.distributed as dist
from launchers import ROOT, clean_environment

from trainer.distributed import agreement
from trainer.errors import LaunchError

LISTENS = """
import ctypes, os, signal, sys, threading, time
from trainer.distributed import agreement, watch
watch._PATIENCE_SECONDS, watch._ECHO_SECONDS = 1.0, float(sys.argv[1])
sleep = ctypes.CDLL(None).sleep  # a call of C that no signal's handler interrupts, as a collective's
one = agreement.Agreement()
with one.listening():
    {}
"""


def ended(body: str, echo: float = 5.0) -> tuple[int, list[str], float]:
    """Run it; the exit code, what it printed, and the seconds since its last line."""
    words = [sys.executable, "-uc", LISTENS.format(body.replace("\n", "\n    ")), str(echo)]
    with subprocess.Popen(
        words, cwd=ROOT, env=clean_environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines, last = [], time.monotonic()
        for line in process.stdout:
            lines.append(line.strip())
            last = time.monotonic()
    return process.returncode, lines, time.monotonic() - last


def test_a_signal_ends_a_process_that_is_stuck_and_no_other() -> None:
    """It goes on where Python moves, waits in its own library, or for other ranks; then it sits in
    C.
    """
    code, lines, seconds = ended("""os.kill(os.getpid(), signal.SIGTERM)
threading.Event().wait(2)
print("waited")
until = time.monotonic() + 2
while time.monotonic() < until:
    sum(range(1000))
print("moved")
one.run_on_main(lambda: sleep(2))
print("main was busy")
sleep(60)""")
    assert (code, lines) == (128 + signal.SIGTERM, ["waited", "moved", "main was busy"])
    assert seconds < 10


def test_signals_of_a_forked_worker_are_its_own_and_an_agreed_stop_has_its_time() -> None:
    code, lines, _ = ended("""source, sink = os.pipe()
worker = os.fork()
if worker == 0:
    os.write(sink, b"forked")
    time.sleep(30), os._exit(0)
os.read(source, 6)
os.kill(worker, signal.SIGTERM)
sleep(2)
print("trains on")
os.kill(worker, signal.SIGKILL)
os.waitpid(worker, 0)
one.poll()
os.kill(os.getpid(), signal.SIGTERM)
print(one.poll(), one.poll(), one.poll())
sleep(2)
print("saved")""")
    assert (code, lines) == (0, ["trains on", "None None 15", "saved"])


def test_the_second_signal_ends_at_once_but_no_echo_of_the_first() -> None:
    code, lines, seconds = ended(
        """pid = os.getpid()
os.kill(pid, signal.SIGTERM)
os.kill(pid, signal.SIGTERM)
time.sleep(0.6)
threading.Timer(0.1, os.kill, (pid, signal.SIGTERM)).start()
print("the echo did nothing")
sleep(60)""",
        echo=0.5,
    )
    assert (code, lines) == (128 + signal.SIGTERM, ["the echo did nothing"])
    assert seconds < 0.9, "before it would be called stuck"


def test_ranks_that_cannot_reach_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**arguments: object) -> None:
        raise RuntimeError(
            "Gloo connectFullMesh failed with connect: Connection refused\nException raised from ..."
        )

    monkeypatch.setattr(dist, "new_group", refuse)
    with pytest.raises(LaunchError) as caught:
        agreement._gloo_group(None)
    assert str(caught.value) == (
        "ranks cannot reach one another over gloo (Gloo connectFullMesh failed with connect: Connection refused); "
        "where a machine's name leads to another network, set GLOO_SOCKET_IFNAME to the interface that the machines "
        "share (ip addr lists them)"
    )
