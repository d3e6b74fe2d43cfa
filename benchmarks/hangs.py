"""Ranks that are stopped at random moments, and jobs in which nothing is wrong: what the watch
says, and when.

    python benchmarks/hangs.py moments 200 --at-once 2    # stops a random rank at a random moment, 200 times
    python benchmarks/hangs.py calm 1000 --at-once 2      # short jobs that nobody disturbs
    python benchmarks/hangs.py cases                      # one job each that looks like a hang, and is none
    python benchmarks/hangs.py stuck 50 --at-once 2       # one thread of a rank waits for ever, at a random step

The ranks are forked from a process that has imported the packages
(``tests/workers/rank_starter.py``), one such process for each of the jobs that run at once; rank 0
holds the store. ``moments`` and ``stuck`` go around five strategies on two and three processes,
with layers of 250,000 elements, which ZeRO-3 divides. A third of the moments lie in the start-up,
from the moment on that all ranks are connected, the others in the first seconds of training,
evaluating and saving.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import queue
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from launchers import HIDE_GPUS, ROOT, STRATEGIES, clean_environment, launch_file

ENDED = re.compile(r"^(?:rank \d+: )?(\S+ \S+) the job ends; its ranks:", re.MULTILINE)
NAMED = re.compile(r"^rank (\d+) ((?:is|stands|waits|has|does) .*)$", re.MULTILINE)
ALARM = re.compile(r"the job ends; its ranks|Traceback|terminate called|Fatal Python error")
TASK = ["--task", "tests.workers.hanging:Hanging", "--warmup_steps", "0", "--micro_batch_size", "4"]
TASK += ["--sanity_evaluation", "false"]
BUSY = [
    "--log_every",
    "1",
    "--eval_every",
    "3",
    "--save_every",
    "4",
    "--evaluation_batch_size",
    "2",
    "--keep_last",
    "2",
]
ENVIRONMENT = {**HIDE_GPUS, "PYTHONFAULTHANDLER": ""}
NOTICED_WITHIN = 60.0
STARTS_WITHIN = 900.0  # the first job waits for the imports of its starter
TRAINS_FOR = 6.0  # seconds of it in which the moments lie


@dataclass
class Job:
    """A job that runs: its folder, the processes of its ranks by rank, what it printed and its exit
    code.
    """

    folder: Path
    starter: psutil.Process
    code: int | None = None
    before: set[int] = field(default_factory=set)

    @property
    def ranks(self) -> list[psutil.Process]:
        return [
            psutil.Process(pid) for pid in sorted(children_of(self.starter.pid))
        ]  # they are forked in order

    @property
    def text(self) -> str:
        files = [self.folder / name for name in ("out", "err")]
        return "\n".join(file.read_text(errors="replace") for file in files if file.exists())

    def is_watched(self, world: int) -> bool:
        """Tell whether all ranks have connected, and begun to watch each other."""
        with suppress(psutil.Error):
            below = [pid for rank in self.ranks for pid in children_of(rank.pid)]
            return sum(is_observer(pid) for pid in below) == world
        return False

    def has_trained(self) -> bool:
        file = self.folder / "run" / "metrics.jsonl"
        return file.exists() and file.stat().st_size > 0

    def wait_for(self, condition: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.code is None:
            if condition():
                return True
            time.sleep(0.02)
        return condition()

    def kill(self) -> None:
        for rank in self.ranks:
            with suppress(psutil.Error):
                rank.kill()


def children_of(pid: int) -> list[int]:
    """List the processes that a process started; without a look at all processes of the machine."""
    with suppress(OSError):
        return [
            int(one)
            for file in Path(f"/proc/{pid}/task").glob("*/children")
            for one in file.read_text().split()
        ]
    return []


def is_observer(pid: int) -> bool:
    with suppress(OSError):
        return b"observer.py" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


class Starter:
    """A process that is forked for each rank, for one job at a time."""

    def __init__(self, cores: set[int] | None = None) -> None:
        words = [sys.executable, str(ROOT / "tests" / "workers" / "rank_starter.py")]
        environment = clean_environment(ENVIRONMENT)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            words, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, text=True
        )
        if cores is not None:
            os.sched_setaffinity(self.process.pid, cores)

    @contextmanager
    def job(
        self, words: list[str], world: int, folder: Path, timeout: float = 300
    ) -> Iterator[Job]:
        """Run ``examples/train.py`` with words; at the end of the block wait for its end."""
        job = {
            "words": ["examples/train.py", *words, "--output_dir", str(folder / "run")],
            "world": world,
            "timeout": timeout,
            "environment": clean_environment(ENVIRONMENT),
            "folder": str(ROOT),
            "out": str(folder / "out"),
            "err": str(folder / "err"),
        }
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        running = Job(folder, psutil.Process(self.process.pid))
        reading = threading.Thread(target=self._read, args=(running,), daemon=True)
        reading.start()
        try:
            yield running
        finally:
            reading.join(timeout + 60)

    def _read(self, job: Job) -> None:
        assert self.process.stdout is not None
        job.code = json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.communicate()


def launch_words(strategy: str, world: int, folder: Path) -> list[str]:
    return ["--accel_config", str(launch_file(folder / f"{strategy}{world}.yaml", strategy, world))]


# -- a rank is stopped, or stuck ------------------------------------------------------------------


@dataclass(frozen=True)
class Seen:
    """What became of one moment."""

    layout: tuple[str, int]
    rank: int
    after: float | None  # seconds from the stop to the message; None: there was none
    named: bool
    phase: str
    text: str


def stop_somewhere(
    starter: Starter, layout: tuple[str, int], draw: random.Random, folder: Path
) -> Seen:
    strategy, world = layout
    rank = draw.randrange(world)
    words = [*launch_words(strategy, world, folder), *TASK, *BUSY, "--task_settings.width", "500"]
    with starter.job([*words, "--max_steps", "100000"], world, folder) as job:
        assert job.wait_for(lambda: job.is_watched(world), STARTS_WITHIN), job.text
        ranks = job.ranks
        if draw.random() < 1 / 3:
            time.sleep(draw.random() * 2.0)
        else:
            job.wait_for(job.has_trained, STARTS_WITHIN)
            time.sleep(draw.random() * TRAINS_FOR)
        stopped_at = time.time()
        ranks[rank].suspend()
        job.wait_for(lambda: False, NOTICED_WITHIN)
        if job.code is None:
            job.kill()
    return seen_in(job, layout, rank, stopped_at)


def seen_in(job: Job, layout: tuple[str, int], rank: int, began: float) -> Seen:
    text = job.text
    found = ENDED.search(text)
    after = datetime.fromisoformat(found[1]).timestamp() - began if found else None
    told = text[found.start() :] if found else ""
    named = {int(number) for number, _ in NAMED.findall(told)}
    phase = re.search(rf"^{rank} +\S+ +\S+ +\S+ +(\S+)", told, re.MULTILINE)
    return Seen(layout, rank, after, named == {rank}, phase[1] if phase else "?", text)


def get_stuck(starter: Starter, layout: tuple[str, int], draw: random.Random, folder: Path) -> Seen:
    strategy, world = layout
    rank, stamp = draw.randrange(world), folder / "stamp"
    settings = does(
        "waits for ever", rank=rank, after=draw.randrange(2, 40), stamp=stamp, width=500
    )
    words = [*launch_words(strategy, world, folder), *TASK, *BUSY, "--max_steps", "100000"]
    words += [word for pair in settings.items() for word in pair]
    with starter.job(words, world, folder) as job:
        job.wait_for(stamp.exists, STARTS_WITHIN)
        job.wait_for(lambda: False, NOTICED_WITHIN)
        if job.code is None:
            job.kill()
    return seen_in(job, layout, rank, stamp.stat().st_mtime if stamp.exists() else time.time())


def print_moments(results: list[Seen]) -> None:
    print(
        "| | processes | noticed | seconds to the message (least, median, most) | the right rank named |"
    )
    print("|---|---|---|---|---|")
    rows: dict[tuple[str, int], list[Seen]] = defaultdict(list)
    for seen in results:
        rows[seen.layout].append(seen)
    for (strategy, world), moments in [*sorted(rows.items()), (("all", 0), results)]:
        seconds = sorted(seen.after for seen in moments if seen.after is not None)
        spread = (
            f"{seconds[0]:.1f}, {statistics.median(seconds):.1f}, {seconds[-1]:.1f}"
            if seconds
            else ""
        )
        named = sum(seen.named for seen in moments)
        print(
            f"| {strategy} | {world or ''} | {len(seconds)} of {len(moments)} | {spread} | {named} of {len(moments)} |"
        )
    phases = Counter(seen.phase for seen in results)
    print("in", ", ".join(f"{phase} {count}" for phase, count in phases.most_common()))


# -- jobs in which nothing is wrong ---------------------------------------------------------------


def run_calmly(starter: Starter, layout: tuple[str, int], draw: random.Random, folder: Path) -> str:
    strategy, world = layout
    words = [
        *launch_words(strategy, world, folder),
        *TASK,
        *BUSY,
        "--task_settings.width",
        draw.choice(["16", "500"]),
    ]
    words += [
        "--max_steps",
        str(draw.randint(2, 9)),
        "--save_in_background",
        draw.choice(["true", "false"]),
    ]
    words += ["--workers", draw.choice(["0", "0", "0", "1"])]
    with starter.job(words, world, folder, timeout=1200) as job:
        pass
    return problem_of(job)


def problem_of(job: Job) -> str:
    alarm = ALARM.search(job.text)
    return "" if job.code == 0 and not alarm else f"exit code {job.code}\n{job.text[-3000:]}"


def stop_all_and_continue(job: Job, *, observers: bool) -> None:
    """Stop what a laptop's lid, or a scheduler that suspends a job, stops."""
    below = (
        [child for rank in job.ranks for child in rank.children(recursive=True)]
        if observers
        else []
    )
    processes = [*job.ranks, *below]
    for process in processes:
        process.suspend()
    time.sleep(25)
    for process in processes:
        process.resume()
        time.sleep(0.3)


def debug(job: Job) -> None:
    """Attach to every thread of rank 1 for 20 seconds, as gdb does."""
    attach, detach = 16, 17
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    threads = [thread.id for thread in job.ranks[1].threads()]
    for thread in threads:
        assert ptrace(attach, thread, 0, 0) == 0, os.strerror(ctypes.get_errno())
    time.sleep(20)
    for thread in threads:
        with suppress(OSError):
            os.waitpid(thread, 0x40000000)  # of a thread that is no child
        ptrace(detach, thread, 0, 0)


def does(what: str, **settings: object) -> dict[str, str]:
    """Return the words by which rank 1 does what ``tests/workers/hanging.py`` names."""
    return {
        f"--task_settings.{key}": str(value) for key, value in {"does": what, **settings}.items()
    }


LONG = {"--task_settings.step_seconds": "0.3", "--max_steps": "60"}
CASES: dict[str, tuple[int, Mapping[str, str], Callable[[Job], None] | None]] = {
    "a long first compile": (2, {"--compile": "true", "--task_settings.width": "500"}, None),
    "build_data of one rank takes 25 s": (2, does("sleeps", at="data", after=1), None),
    "the first item of one rank takes 25 s": (2, does("sleeps", at="item", after=1), None),
    "the same in a loader process": (
        2,
        {**does("sleeps", at="item", after=1), "--workers": "1"},
        None,
    ),
    "one rank computes for 25 s": (2, does("computes"), None),
    "one rank keeps Python's lock for 25 s or more": (2, does("keeps the lock"), None),
    "one rank waits for an answer for 25 s": (2, does("asks"), None),
    "one rank reads a pipe for 25 s": (2, does("reads a pipe"), None),
    "one rank runs a program for 25 s": (2, does("runs a program"), None),
    "one rank is in a debugger for 20 s": (2, LONG, debug),
    "all ranks stopped for 25 s": (
        2,
        LONG,
        lambda job: stop_all_and_continue(job, observers=False),
    ),
    "the whole job stopped for 25 s": (
        3,
        LONG,
        lambda job: stop_all_and_continue(job, observers=True),
    ),
    "16 processes on two cores": (16, {"--task_settings.width": "500", "--max_steps": "20"}, None),
}


def run_case(name: str, strategy: str, folder: Path) -> str:
    world, typed, disturb = CASES[name]
    settings = {"--max_steps": "6", **typed}
    starter = Starter(set(sorted(os.sched_getaffinity(0))[:2]) if world == 16 else None)
    words = [*launch_words(strategy, world, folder), *TASK, "--log_every", "1"]
    words += [word for pair in settings.items() for word in pair]
    with starter.job(words, world, folder, timeout=900) as job:
        if disturb is not None:
            job.wait_for(job.has_trained, STARTS_WITHIN)
            disturb(job)
    starter.close()
    return problem_of(job)


# -- the command ----------------------------------------------------------------------------------


def several(
    count: int, at_once: int, seed: int, work: Callable[..., object], strategies: list[str]
) -> list[object]:
    """Do ``work`` for as many moments, around all layouts, some at once; the results in any order."""
    layouts = [(strategy, world) for world in (2, 3) for strategy in strategies]
    waiting: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in range(count):
        waiting.put(number)
    results: list[object] = []

    def work_off() -> None:
        starter = Starter()
        with suppress(queue.Empty):
            while True:
                number = waiting.get_nowait()
                folder = Path(tempfile.mkdtemp(prefix="hangs-"))
                result = work(
                    starter,
                    layouts[number % len(layouts)],
                    random.Random(f"{seed}/{number}"),
                    folder,
                )
                shutil.rmtree(folder, ignore_errors=True)
                results.append(result)
                tell(number, layouts[number % len(layouts)], result)
        starter.close()

    threads = [threading.Thread(target=work_off) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def tell(number: int, layout: tuple[str, int], result: object) -> None:
    if isinstance(result, Seen):
        after = "never" if result.after is None else f"{result.after:.1f} s"
        line = (
            f"{number}: {layout[0]} on {layout[1]}: rank {result.rank} in {result.phase}: {after}"
        )
        print(
            line if result.named else f"{line}; NOT NAMED\n{result.text[-3000:]}",
            file=sys.stderr,
            flush=True,
        )
    elif result:
        print(f"{number}: {layout[0]} on {layout[1]}: {result}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["moments", "stuck", "calm", "cases"])
    parser.add_argument("count", type=int, nargs="?", default=30)
    parser.add_argument("--at-once", type=int, default=1, help="jobs")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the moments and ranks that are drawn"
    )
    parser.add_argument("--only", nargs="+", default=list(STRATEGIES), help="strategies")
    parser.add_argument("--case", nargs="+", default=list(CASES), help="of cases")
    typed = parser.parse_args()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if typed.what == "cases":
        for name in typed.case:
            strategy = typed.only[list(CASES).index(name) % len(typed.only)]
            with tempfile.TemporaryDirectory(prefix="hangs-") as folder:
                begin = time.monotonic()
                problem = run_case(name, strategy, Path(folder))
                seconds = time.monotonic() - begin
                print(
                    f"| {name} | {strategy} | {seconds:.0f} s | {problem or 'no alarm'} |",
                    flush=True,
                )
        return
    work = {"moments": stop_somewhere, "stuck": get_stuck, "calm": run_calmly}[typed.what]
    results = several(typed.count, typed.at_once, typed.seed, work, typed.only)
    if typed.what == "calm":
        alarms = sum(bool(result) for result in results)
        print(f"{len(results)} jobs, {alarms} with an alarm or an error")
    else:
        print_moments([result for result in results if isinstance(result, Seen)])


if __name__ == "__main__":
    main()
