"""Signals to a process of its own: which end it, which ask it to stop, and which it never sees."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

from launchers import ROOT, clean_environment

LISTENS = """
import ctypes, os, signal, sys, threading, time
from trainer.distributed import agreement, signals
signals._PATIENCE_SECONDS, signals._ECHO_SECONDS = 1.0, float(sys.argv[1])
sleep = ctypes.CDLL(None).sleep  # a call of C, as a collective's
pid = os.getpid()
both = agreement.Agreement()

def send_soon(number):
    # To another thread: the handler in C would interrupt the main thread's sleep.
    send = lambda: signal.pthread_kill(threading.get_ident(), number)
    threading.Timer(0.3, send).start()

with both.listening():
    {}
"""


def ended(body: str, echo: float = 5.0) -> tuple[int, list[str], float]:
    """Run it; return the exit code, what it printed, and the seconds since its last line."""
    code = LISTENS.format(body.replace("\n", "\n    "))
    with subprocess.Popen(
        [sys.executable, "-uc", code, str(echo)],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = []
        last = time.monotonic()
        for line in process.stdout:
            lines.append(line.strip())
            last = time.monotonic()
    return process.returncode, lines, time.monotonic() - last


def test_a_signal_ends_a_process_that_is_stuck_in_c() -> None:
    """Not one that answers, or waits for other ranks."""
    code, lines, seconds = ended(
        """send_soon(signal.SIGTERM)
time.sleep(0.6)
sleep(2)
print("had answered")
send_soon(signal.SIGTERM)
both.run_on_main(lambda: sleep(2))
print("main was busy")
send_soon(signal.SIGTERM)
sleep(60)""",
        echo=60.0,
    )
    assert (code, lines) == (128 + signal.SIGTERM, ["had answered", "main was busy"])
    assert seconds < 10


def test_an_interrupt_that_is_not_answered_ends_it_as_well() -> None:
    code, lines, _ = ended("""os.kill(pid, signal.SIGINT)
print("asked")
send_soon(signal.SIGINT)
sleep(60)""")
    assert (code, lines) == (128 + signal.SIGINT, ["asked"])


def test_signals_of_a_forked_worker_are_its_own_and_an_agreed_stop_has_its_time() -> None:
    code, lines, seconds = ended("""source, sink = os.pipe()
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
both.poll()
os.kill(pid, signal.SIGTERM)
print(both.poll(), both.poll(), both.poll())
send_soon(signal.SIGTERM)
sleep(2)
if os.fork() == 0:
    os.close(1)
    time.sleep(20), os._exit(0)
print("saved")""")
    assert (code, lines) == (0, ["trains on", "None None 15", "saved"])
    assert seconds < 10  # no end waits for a worker that lives on


def test_the_second_signal_ends_at_once_but_no_echo_of_the_first() -> None:
    code, lines, seconds = ended(
        """os.kill(pid, signal.SIGTERM)
os.kill(pid, signal.SIGTERM)
time.sleep(0.6)
threading.Timer(0.1, os.kill, (pid, signal.SIGTERM)).start()
print("the echo did nothing")
sleep(60)""",
        echo=0.5,
    )
    assert (code, lines) == (128 + signal.SIGTERM, ["the echo did nothing"])
    assert seconds < 0.9, "before it would be called stuck"
