"""What the process beside each rank sees of it, and answers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from trainer.faults.observation import Report
from trainer.faults.observer import Activity, Observer

COMPUTES = """
import sys, time
for line in sys.stdin:
    end = time.process_time() + float(line)
    while time.process_time() < end: pass
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that sleeps, or computes for each second that is written to it."""
    process = subprocess.Popen([sys.executable, "-c", COMPUTES], stdin=subprocess.PIPE, text=True)
    time.sleep(0.5)  # its start takes cores
    yield process
    process.kill()
    process.communicate()


def let_compute(process: subprocess.Popen[str], seconds: float) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{seconds}\n")
    process.stdin.flush()


def seen(activity: Activity, seconds: float) -> Report:
    """Look as often as the observer does, and return what it says in the end."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        activity.look()
        time.sleep(0.1)
    return Report(**activity.report())


def test_a_process_is_idle_until_it_computes(child: subprocess.Popen[str]) -> None:
    activity = Activity(child.pid)
    assert seen(activity, 1.5).idle > 1.3
    let_compute(child, 0.3)
    assert seen(activity, 0.8).idle < 0.8


STARTS = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', {code!r}])"


def test_what_a_process_started_works_for_it() -> None:
    """As loader processes and compilers do; they are looked at once the process itself has been
    idle for a while.
    """
    code = "import time; time.sleep(2.5)\nwhile time.process_time() < 0.5: pass\ntime.sleep(9)"
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTS.format(code=code)], start_new_session=True
    )
    time.sleep(0.5)
    activity = Activity(starter.pid)
    assert seen(activity, 1.8).idle > 1.5
    assert seen(activity, 1.5).idle < 1.5
    os.killpg(starter.pid, signal.SIGKILL)
    starter.wait()


def test_what_comes_and_goes_works_for_who_started_it() -> None:
    """As compilers do, one after the other, of a worker that waits for each of them."""
    work = "import time\nwhile time.process_time() < 0.1: pass"
    code = f"import subprocess, sys\ninput()\nwhile True: subprocess.run([sys.executable, '-c', {work!r}])"
    words = [sys.executable, "-c", STARTS.format(code=code)]
    starter = subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True)
    time.sleep(0.5)
    activity = Activity(starter.pid)
    assert seen(activity, 2.0).idle > 1.7
    assert starter.stdin is not None
    starter.stdin.write(b"\n")
    starter.stdin.flush()
    assert seen(activity, 2.5).idle < 1.5
    os.killpg(starter.pid, signal.SIGKILL)
    starter.communicate()


def test_what_wakes_up_for_a_moment_at_each_look_is_idle(child: subprocess.Popen[str]) -> None:
    """As the threads do that answer the other ranks' questions, twice a second, of a rank that is
    stuck: none of its threads stays runnable.
    """
    activity = Activity(child.pid)
    for _ in range(8):
        let_compute(child, 0.005)
        time.sleep(0.002)
        activity.look()
        time.sleep(0.5)
    assert Report(**activity.report()).idle > 3.5


STARVED = """
import os, threading
def work():
    os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
    print(flush=True)
    while True: sum(range(1000000))
threading.Thread(target=work).start()
"""


def test_a_thread_that_gets_no_core_is_not_idle() -> None:
    """As gloo's are on a machine with too many processes, while the main thread waits for them."""
    pinned = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), sys.executable, "-c"]
    starved = subprocess.Popen([*pinned, STARVED], stdout=subprocess.PIPE)
    assert starved.stdout is not None and starved.stdout.readline()
    starved.stdout.close()
    rivals = [subprocess.Popen([*pinned, "while True: pass"]) for _ in range(3)]
    report = seen(Activity(starved.pid), 4.0)
    for process in (starved, *rivals):
        process.kill()
        process.wait()
    assert report.idle < 2.5


def test_a_stopped_process_is_told_from_one_in_a_debugger(child: subprocess.Popen[str]) -> None:
    activity = Activity(child.pid)
    child.send_signal(signal.SIGSTOP)
    report = seen(activity, 1.0)
    assert report.stopped > 0.7 and not report.traced
    child.send_signal(signal.SIGCONT)
    assert seen(activity, 0.5).stopped == 0.0

    code = f"import ctypes, time; ctypes.CDLL(None).ptrace(16, {child.pid}, 0, 0); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as debugger:
        assert debugger.stdout is not None and debugger.stdout.readline()
        report = seen(activity, 1.0)
        assert report.traced and report.stopped == 0.0
        debugger.kill()


def test_a_stopped_process_that_was_started_is_told_and_killed() -> None:
    code = STARTS.format(code="import time; time.sleep(60)")
    starter = subprocess.Popen([sys.executable, "-c", code])
    time.sleep(0.8)
    activity = Activity(starter.pid)
    seen(activity, 1.5)
    [pid] = [pid for pid, _ in activity._family if pid != starter.pid]
    os.kill(pid, signal.SIGSTOP)
    assert seen(activity, 1.0).stopped_children.keys() == {str(pid)}
    activity.kill_stopped()
    assert starter.wait(10) == 0, "what it waited for is gone"


def test_an_observer_that_was_stopped_itself_begins_anew(child: subprocess.Popen[str]) -> None:
    activity = Activity(child.pid)
    child.send_signal(signal.SIGSTOP)
    seen(activity, 0.5)
    activity._looked -= 25.0  # the whole machine was
    activity._idle_since -= 25.0
    report = seen(activity, 0.3)
    assert report.stopped < 0.5 and report.idle < 0.5


def test_questions_need_the_password_and_the_first_claims() -> None:
    observer = Observer(os.getppid(), "secret")
    assert observer.answer("wrong look") == {} == observer.answer("")
    assert observer.answer("secret claim") == {"first": True}
    assert observer.answer("secret claim") == {"first": False}
    assert observer.answer("secret look").keys() == {
        "idle",
        "stopped",
        "stopped_children",
        "traced",
    }
    assert Observer(os.getppid() + 1, "secret").answer("secret look") == {"gone": True}
