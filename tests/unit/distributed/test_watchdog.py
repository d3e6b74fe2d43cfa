"""What the watch over the ranks makes of what they wrote, and of processes that work, wait and end."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from trainer.distributed import watchdog
from trainer.distributed.activity import Idleness, doing, frames_of, lives
from trainer.distributed.watchdog import Watchdog

IN_ALL_REDUCE = {"waits": True, "idle": 9.0}
STILL = {"waits": False, "idle": 9.0}
BUSY = {"waits": False, "idle": 0.1}


class Board(dict[str, str]):
    """What a store answers, from a dictionary."""

    def check(self, names: list[str]) -> bool:
        return all(name in self for name in names)

    def multi_get(self, names: list[str]) -> list[str]:
        return [self[name] for name in names]


def judged(ranks: list[dict[str, Any]], *, gpu: bool = False) -> str:
    """Return how a job ends whose ranks wrote this, each looked at by the rank before it; "" if it goes on."""
    board, ended = Board(), [""]
    watch = Watchdog(
        rank=0, world_size=len(ranks), position=lambda: (5, "training", 7), hang_seconds=10.0, gpu=gpu,
        advice=lambda: "go on", log=print,
    )  # fmt: skip
    watch._end = lambda message: ended.append(message)  # type: ignore[method-assign]
    watch._store, watch._moves, watch._moved = board, 7, time.monotonic() - 9
    defaults = {"host": "here", "pid": 1, "step": 5, "phase": "training", "count": 3, "unmoved": 9.0, "let_wait": False}
    for rank, said in enumerate(ranks):
        following = (rank + 1) % len(ranks)
        known = {**defaults, "calls": {"world": 4}, "doing": "f (a.py:1)", "crash": "", **said}
        board[str(rank)] = json.dumps(known | {"idle": [following, ranks[following]["idle"]]})
    watch._judge(8.5)
    return ended[-1]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ([IN_ALL_REDUCE, STILL], "rank 1 stands still: nothing in the job went on for 10 s"),
        ([STILL, IN_ALL_REDUCE], "rank 0 stands still"),
        ([IN_ALL_REDUCE, IN_ALL_REDUCE, STILL, IN_ALL_REDUCE], "rank 2 stands still"),
        ([IN_ALL_REDUCE, IN_ALL_REDUCE], "waits in another call than others"),
        ([IN_ALL_REDUCE, {**IN_ALL_REDUCE, "calls": {"world": 3}}], "rank 1 has not entered what the others wait in"),
        ([STILL, STILL], "rank 0 stands still"),
        ([IN_ALL_REDUCE, {**STILL, "phase": "data"}], "rank 1 stands still"),
        ([IN_ALL_REDUCE, BUSY], ""),
        ([BUSY, STILL], ""),
        ([IN_ALL_REDUCE, {**STILL, "let_wait": True}], ""),
        ([IN_ALL_REDUCE, {**STILL, "phase": "saving"}], ""),
        ([IN_ALL_REDUCE, {**STILL, "unmoved": 3.0}], ""),
        ([IN_ALL_REDUCE, {**STILL, "phase": "ending"}], ""),
    ],
)
def test_who_stands_still(ranks: list[dict[str, Any]], said: str) -> None:
    message = judged(ranks)
    assert (said in message) if said else message == ""


def test_ranks_that_wait_for_their_gpu_are_let_alone() -> None:
    assert judged([STILL, STILL], gpu=True) == ""
    assert "rank 1 stands still" in judged([IN_ALL_REDUCE, STILL], gpu=True)
    assert "rank 0 stands still" in judged([{**STILL, "phase": "data"}, {**STILL, "phase": "data"}], gpu=True)


def test_a_rank_is_cut_off_when_no_answer_comes_and_not_when_it_had_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call of C that keeps the interpreter's lock holds up the watch itself, in the middle of a question."""
    ended: list[str] = []
    for stalls, expected in ((True, []), (False, ["is cut off from the others"])):
        ended.clear()
        clock = iter([0.0, 0.0, *([0.5, 20.0, 20.5] if stalls else [0.5 * half for half in range(1, 40)]), *[21.0] * 9])
        watch = Watchdog(
            rank=0, world_size=2, position=lambda: (5, "training", 7), hang_seconds=10.0, gpu=False,
            advice=lambda: "", log=print,
        )  # fmt: skip
        turns = iter([False] * (4 if stalls else 30) + [True])
        watch._ended = SimpleNamespace(wait=lambda seconds, turns=turns: next(turns))  # type: ignore[assignment]
        no_answer = threading.Event()
        watch._look = lambda no_answer=no_answer: no_answer.wait(30)  # type: ignore[method-assign, misc]
        watch._report = lambda ranks, hung: ranks[0]  # type: ignore[method-assign, assignment, misc]
        watch._end = lambda message, turns=turns: ended.append(message) or [*turns]  # type: ignore[method-assign, misc, assignment, func-returns-value]
        monkeypatch.setattr(watchdog, "_PERIOD_SECONDS", 0.5)
        monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda clock=clock: next(clock)))
        watch._moved = 0.0
        with contextlib.suppress(StopIteration):
            watch._run()
        no_answer.set()
        assert ended[:1] == expected


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that sleeps, or computes for each second that is written to it."""
    code = "import sys, time\nfor line in sys.stdin:\n    end = time.process_time() + float(line)\n"
    code += "    while time.process_time() < end: pass\n"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True)
    yield process
    process.kill()
    process.communicate()


def test_a_process_is_idle_until_it_computes(child: subprocess.Popen[str]) -> None:
    time.sleep(0.5)  # its start takes cores
    idleness = Idleness(psutil.Process(child.pid))
    time.sleep(0.6)
    assert idleness.seconds(watched=10.0) > 0.5
    assert child.stdin is not None
    child.stdin.write("0.3\n")
    child.stdin.flush()
    time.sleep(1.0)
    assert idleness.seconds(watched=10.0) < 0.5


def test_what_a_process_started_works_for_it(child: subprocess.Popen[str]) -> None:
    """As loader processes and compilers do; they are looked at once the process itself has been idle for a while."""
    time.sleep(0.5)
    starter = Idleness(psutil.Process())
    starter._since, starter._used = time.monotonic() - 6.0, 1e9  # whatever this process does itself
    assert starter.seconds(watched=10.0) >= 6.0
    assert child.stdin is not None
    child.stdin.write("0.5\n")
    child.stdin.flush()
    time.sleep(1.0)
    assert starter.seconds(watched=10.0) < 1.0


def test_what_comes_and_goes_works_for_who_started_it() -> None:
    """As compilers do, one after the other, of a worker that waits for each of them."""
    work = "import time\nwhile time.process_time() < 0.1: pass"
    code = f"import subprocess, sys\ninput()\nwhile True: subprocess.run([sys.executable, '-c', {work!r}])"
    worker = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, text=True)
    time.sleep(0.5)
    starter = Idleness(psutil.Process(worker.pid))
    starter._since, starter._used = time.monotonic() - 6.0, 1e9
    starter._family = {psutil.Process(worker.pid): 1e9}  # it sleeps itself; nobody else was there
    assert worker.stdin is not None
    worker.stdin.write("\n")
    worker.stdin.flush()
    end = time.monotonic() + 8.0
    while time.monotonic() < end and starter.seconds(watched=10.0) > 1.0:
        time.sleep(0.2)
    for one in [psutil.Process(worker.pid), *psutil.Process(worker.pid).children(recursive=True)]:
        one.kill()
    worker.communicate()
    assert time.monotonic() < end, "it was taken for idle"


STARVED = """
import os, sys, threading
from trainer.distributed.activity import name_watch
def work():
    if sys.argv[1] == "watch":
        name_watch()
    os.sched_setscheduler(threading.get_native_id(), os.SCHED_IDLE, os.sched_param(0))
    print(flush=True)
    while True: sum(range(1000000))
threading.Thread(target=work).start()
"""


def test_a_thread_that_gets_no_core_is_not_idle_but_those_of_the_watch_are() -> None:
    """As gloo's are on a machine with too many processes, while the main thread waits for them."""
    pinned = ["taskset", "--cpu-list", str(min(os.sched_getaffinity(0))), sys.executable, "-c"]
    starved = [subprocess.Popen([*pinned, STARVED, name], stdout=subprocess.PIPE) for name in ("gloo", "watch")]
    for process in starved:
        assert process.stdout is not None and process.stdout.readline()
        process.stdout.close()
    rivals = [subprocess.Popen([*pinned, "while True: pass"]) for _ in range(3)]
    looked_at, end = [Idleness(psutil.Process(process.pid)) for process in starved], time.monotonic() + 2.5
    while time.monotonic() < end:
        time.sleep(0.1)
        others, watchs = (idleness.seconds(watched=1.0) for idleness in looked_at)
    for process in (*starved, *rivals):
        process.kill()
        process.wait()
    assert others < 1.0 < watchs


def test_a_process_that_ended_does_not_live(child: subprocess.Popen[str]) -> None:
    assert lives(child.pid)
    child.kill()
    time.sleep(0.3)
    assert not lives(child.pid)  # though nobody has waited for it yet


def test_doing_names_the_own_line() -> None:
    event = threading.Event()

    def waits_here() -> None:
        event.wait()

    thread = threading.Thread(target=waits_here)
    thread.start()
    time.sleep(0.1)
    found = doing(frames_of(thread.ident or 0))
    event.set()
    assert found["doing"].startswith("waits_here (") and os.path.basename(__file__) in found["doing"]
    assert not found["waits"] and not found["let_wait"]


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
    text = watchdog._read_once(file)
    assert text.startswith("Fatal Python error: Aborted\nCurrent thread ")
    assert "in falls" in text and "threading.py" not in text and not file.exists()
