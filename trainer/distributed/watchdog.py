"""A watch over the ranks of a job: one that is gone, or that stands still, is named, and then the job ends.

A rank that dies takes its connections with it, and the others fail with errors of their own, or wait. One that is
stopped, or waits for a worker that never answers, closes nothing: the others wait for it until the time-out, half an
hour by default. So a thread of each rank writes twice a second what the rank does to the store that all share, and
looks at the process of its neighbour on the same machine: whether it lives, and whether it works.

A rank stands still where its process used no core for ``hang_seconds``, it is not in a collective, and no other rank
went on meanwhile; or where all of them wait in collectives, which then cannot be the same. A compiler, a slow step and
an evaluation use a core or a disk; one that writes a checkpoint, talks to a tracker, waits for an answer over the
network, or is under a debugger is let alone, unless it is stopped.

It costs the main thread nothing but the interpreter's lock, for some 0.1 ms twice a second.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import shlex
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

import psutil

from ..errors import TrainerError
from ..text import columns, hidden_words
from .activity import Idleness, doing, frames_of, lives, name_watch
from .exit import claim_first_error, end_at_once, is_lost_peer
from .launcher import launcher_processes

_PERIOD_SECONDS = 0.5
_FOUND_SECONDS = 2.0  # a rank whose connections broke waits so long to learn which one is gone
_GONE = (
    "is gone without a word (killed, out of memory, or aborted in C++, as where ranks use different parameters in one "
    "step without find_unused_parameters: true)"
)
_serial = 0


class LostRank(TrainerError):
    """Another rank of the job is gone."""

    on_every_rank = False


class _Seen:
    """What a rank wrote last, and when (by this process's clock) it was last heard of."""

    def __init__(self) -> None:
        self.wrote: dict[str, Any] = {}
        self.heard = 0.0

    def update(self, wrote: dict[str, Any], now: float) -> None:
        if wrote["count"] != self.wrote.get("count"):
            self.heard = now
        self.wrote = wrote


class Watchdog:
    """Watches the ranks while a training runs: ``with Watchdog(...):`` on every rank. One process has nobody to watch.

    Args:
        rank, world_size: of this process.
        position: returns the optimizer step, the phase, and a number that grows as the rank goes on. It is called from
            another thread.
        hang_seconds: how long a rank may stand still; None: for ever.
        gpu: whether the ranks compute on one.
        advice: returns how to go on, for the end of the message.
        log: writes the message to the run's log.

    Raises:
        LostRank: at the end of the block, where it fails because another rank is gone.
    """

    def __init__(
        self,
        *,
        rank: int,
        world_size: int,
        position: Callable[[], tuple[int, str, int]],
        hang_seconds: float | None,
        gpu: bool,
        advice: Callable[[], str],
        log: Callable[[str], None],
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._position, self._advice, self._log = position, advice, log
        self._hang_seconds, self._gpu = hang_seconds, gpu
        # It is told by then, and not looked at by then for the first time.
        self._watched = None if hang_seconds is None else max(hang_seconds - 3 * _PERIOD_SECONDS, 2 * _PERIOD_SECONDS)
        self._host, self._count, self._ended = socket.gethostname(), 0, threading.Event()
        self._moves, self._moved = -1, time.monotonic()
        self._failed: list[FrameType] = []
        self._claimed = self._verdict = False
        self._looks, self._left = 0, ""
        self._crashes: dict[int, str] = {}
        self._reading = threading.Lock()
        self._telling = threading.Lock()
        self._seen: dict[int, _Seen] = {}
        self._neighbour: tuple[int, Idleness] | None = None
        self._store: Any = None
        self._shared: Any = None
        self._last: dict[int, dict[str, Any]] = {}
        self._crash: Any = None

    def __enter__(self) -> Watchdog:
        global _serial
        _serial += 1
        if self.world_size > 1:
            import torch.distributed as dist

            # One of its own: another thread's wait must not hold it up.
            shared: Any = dist.distributed_c10d._get_default_store()
            self._shared = shared.clone()
            self._shared.set_timeout(timedelta(seconds=_FOUND_SECONDS))
            self._store = dist.distributed_c10d.PrefixStore(f"samecurve/watch/{_serial}", self._shared)
            self._main = threading.get_ident()
            if not faulthandler.is_enabled():
                # Read by the neighbour, so that it stands where a user reads first, and not above all else.
                self._crash = tempfile.NamedTemporaryFile("w", prefix="samecurve-crash-")
                faulthandler.enable(self._crash)
            self._ask(self._write)
            self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.world_size == 1:
            return
        message = ""
        if error is not None and is_lost_peer(error):
            self._telling.acquire()  # for good: the thread tells nothing any more, or ends this process
            self._failed = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][::-1]
            message = self._name_lost()
        self._ended.set()
        self._thread.join(timeout=_FOUND_SECONDS)
        self._left = "finished" if error is None else f"left with {type(error).__name__}"
        self._ask(self._write)
        if self._crash is not None:
            faulthandler.disable()
            self._crash.close()
        if message:
            raise LostRank(message) from error

    # -- the thread -------------------------------------------------------------------------------

    def _run(self) -> None:
        name_watch()
        woke = asked = time.monotonic()
        looking: threading.Thread | None = None
        while not self._ended.wait(_PERIOD_SECONDS if self._neighbour and not self._failed else _PERIOD_SECONDS / 10):
            now, before = time.monotonic(), woke
            woke, moves = now, self._position()[2]
            if moves != self._moves:
                self._moves, self._moved = moves, now
            # This process was stopped, or a call of C kept the interpreter's lock: it knows of nobody.
            if now - before > 4 * _PERIOD_SECONDS:
                self._seen.clear()
                self._neighbour, asked = None, now
            if looking is None or not looking.is_alive():
                asked = now
                # A thread of its own: from a machine that is cut off the store gets no answer, and no time-out ends it.
                (looking := threading.Thread(target=self._ask, args=(self._look,), daemon=True)).start()
                looking.join(_PERIOD_SECONDS)
            elif self._watched is not None and now - max(asked, self._moved) >= self._watched:
                self._store = self._shared = None
                self._end(self._report({self.rank: "is cut off from the others"}, hung=True))

    def _ask(self, work: Callable[[], object]) -> None:
        """Do what asks the store. It is gone with the rank that held it, and torch prints a stack for each question."""
        try:
            work()
        except RuntimeError:
            self._store = self._shared = None
        except (OSError, psutil.Error, ValueError):
            return

    def _look(self) -> None:
        if self._store is not None:
            self._write()
            if self._store.check(["verdict"]):
                self._verdict = True
                self._end("")
            if self._neighbour is None:
                self._find_neighbour()
            else:
                # Rank 0 may hold the store: when that is gone nothing more can be read.
                self._read(*(range(self.world_size) if self._failed else (0, self._neighbour[0])))
        gone = self._gone()
        if gone is not None:  # it may have said something meanwhile
            self._read(*range(self.world_size))
        self._claimed = self._failed != [] and self._is_claimed()
        self._looks += 1
        if gone is not None and gone == self._gone():
            if not self._is_claimed():
                self._end(self._report({gone: _GONE}))
        elif self._watched is not None and self.rank < 2:  # two, of which one may be what stands still
            self._judge(self._watched)

    def _is_claimed(self, *, take: bool = False) -> bool:
        """Tell whether another rank tells what happened."""
        owner = claim_first_error(self._shared, take=take) if self._shared is not None else None
        return owner not in (None, "", str(self.rank))

    def _gone(self) -> int | None:
        """Return the rank of a process of this machine that ended while its training ran, as far as is known."""
        others = (rank for rank, known in list(self._last.items()) if rank != self.rank and known["host"] == self._host)
        ended = (rank for rank in others if "left" not in self._last[rank] and not lives(self._last[rank]["pid"]))
        return next(ended, None)

    def _write(self) -> None:
        step, phase, _ = self._position()
        self._count += 1
        known: dict[str, Any] = {"host": self._host, "pid": os.getpid(), "step": step, "phase": phase}
        known |= {"count": self._count, "unmoved": time.monotonic() - self._moved}
        known |= {"crash": self._crash.name if self._crash else "", "calls": _calls()}
        known |= doing(self._failed or frames_of(self._main))
        if self._neighbour is not None and self._watched is not None:
            rank, idleness = self._neighbour
            known["idle"] = [rank, round(idleness.seconds(self._watched), 1)]
        if self._left:
            known["left"] = self._left
        self._last[self.rank] = known
        if self._store is not None:
            self._store.set(str(self.rank), json.dumps(known))

    def _read(self, *ranks: int) -> None:
        """Learn what ranks wrote last."""
        if self._store is not None:
            texts = self._store.multi_get([str(rank) for rank in ranks])
            self._last.update({rank: json.loads(text) for rank, text in zip(ranks, texts, strict=True)})

    def _find_neighbour(self) -> None:
        """Find the next rank on this machine, around in a circle; a rank alone on its machine looks at itself."""
        if not self._store.check([str(rank) for rank in range(self.world_size)]):
            return  # some have not come so far
        self._read(*range(self.world_size))
        ranks = [(self.rank + number) % self.world_size for number in range(1, self.world_size + 1)]
        rank = next(rank for rank in ranks if self._last[rank]["host"] == self._host)
        self._neighbour = rank, Idleness(psutil.Process(self._last[rank]["pid"]))

    def _judge(self, watched: float) -> None:
        """End the job where a rank stands still. Nothing is read while this rank goes on."""
        now = time.monotonic()
        if now - self._moved < 2 * _PERIOD_SECONDS:
            self._seen.clear()
            return
        self._read(*range(self.world_size))
        for rank, known in self._last.items():
            self._seen.setdefault(rank, _Seen()).update(known, now)
        every = {rank: seen.wrote for rank, seen in self._seen.items()}
        silent = {rank: now - seen.heard for rank, seen in self._seen.items()}
        if any(known["unmoved"] + silent[rank] < watched for rank, known in every.items()):
            return
        if any(known["let_wait"] or known["phase"] == "ending" for known in every.values()):
            return
        told = [known["idle"] for rank, known in every.items() if "idle" in known and silent[rank] < watched / 2]
        idle = {rank: seconds for rank, seconds in told}
        still = {rank for rank in every if idle.get(rank, silent[rank]) >= watched}
        stopped = {rank for rank in still if silent[rank] >= watched}
        waiting = {rank for rank, known in every.items() if known["waits"]}
        # A bucket that is mounted as a folder, or a tracker's server, takes its time, and no core of this machine.
        away = {rank for rank, known in every.items() if known["phase"] in ("saving", "trackers")} - waiting - stopped
        if still | waiting != every.keys() or away:
            return
        # A rank that waits for its GPU may use no core; then all do, and nobody waits in a collective.
        late = {rank for rank in still - waiting if waiting or every[rank]["phase"] == "data" or not self._gpu}
        if found := stopped or late:
            texts = dict.fromkeys(found, "stands still") | dict.fromkeys(stopped, "is stopped, or its machine is")
            self._end(self._report(texts, hung=True))
        elif still == waiting == every.keys():
            behind = dict.fromkeys(self._behind(every), "has not entered what the others wait in")
            self._end(self._report(behind or dict.fromkeys(still, "waits in another call than others"), hung=True))

    @staticmethod
    def _behind(every: dict[int, dict[str, Any]]) -> set[int]:
        """Return the ranks that have begun fewer collectives than others, in some group that they share."""
        most: dict[str, int] = {}
        for known in every.values():
            most |= {group: max(count, most.get(group, 0)) for group, count in known["calls"].items()}
        return {r for r, known in every.items() if any(count < most[group] for group, count in known["calls"].items())}

    # -- the message ------------------------------------------------------------------------------

    def _name_lost(self) -> str:
        """Return the message for a broken connection; "" where another rank tells what happened, or nobody is gone.

        The thread asks the store meanwhile: it may not answer.
        """
        seen: dict[int, _Seen] = {}
        dead: tuple[int | None, int] = None, 0
        end = time.monotonic() + _FOUND_SECONDS
        while (now := time.monotonic()) < end and not self._claimed:
            if self._verdict:
                end_at_once("", before=lambda: None)
            if (gone := self._gone()) != dead[0]:
                dead = gone, self._looks
            for rank, known in sorted(list(self._last.items())):
                seen.setdefault(rank, _Seen()).update(known, now)
                silent = rank != self.rank and now - seen[rank].heard > 3 * _PERIOD_SECONDS
                asked = self._looks > dead[1] + 1 or self._store is None  # since it is gone: it may have said why
                if known.get("left", "finished") != "finished" or (rank == gone and asked) or silent:
                    return self._report({rank: known.get("left") or _GONE})
            time.sleep(_PERIOD_SECONDS / 10)
        return ""

    def _report(self, ranks: dict[int, str], *, hung: bool = False) -> str:
        """Say what happened to which ranks, what every rank was doing, and how to go on."""
        crashes, now = [], datetime.now().isoformat(" ", "milliseconds")
        rows = [("rank", "host", "pid", "step", "phase", "doing", "collectives begun")]
        for rank, known in sorted(list(self._last.items())):
            calls = ", ".join(f"{group} {count}" for group, count in known["calls"].items())
            doing = known.get("left") or known["doing"]
            if rank in ranks and known["host"] == self._host and known["crash"]:
                with self._reading:  # two threads may write a report, of which one is told
                    self._crashes[rank] = self._crashes.get(rank) or _read_once(Path(known["crash"]))
                crashes.append(self._crashes[rank])
            rows.append((str(rank), known["host"], str(known["pid"]), str(known["step"]), known["phase"], doing, calls))
        still = f": nothing in the job went on for {self._hang_seconds:g} s (hang_seconds)" if hung else ""
        lines = [f"rank {rank} {text}{still}" for rank, text in sorted(ranks.items())]
        return "\n".join(
            [f"{now} the job ends; its ranks:", *columns(rows), *filter(None, crashes), *lines, self._advice()]
        )

    def _end(self, message: str) -> None:
        """End this process, from the thread: the main one may wait for ever. "": another rank has told why."""
        if not self._telling.acquire(blocking=False):
            return  # the main thread tells it
        if message and self._is_claimed(take=True):
            message = ""
        if message:
            with contextlib.suppress(TrainerError):  # a full disk must not keep the job
                self._log(message)
        end_at_once(message, before=lambda: self._ask(self._end_others))

    def _end_others(self) -> None:
        """Have the others end; one of this machine that is stopped takes no signal, and the launcher would wait."""
        if self._crash is not None:
            os.unlink(self._crash.name)
        if self._store is not None:
            self._store.set("verdict", "ended")
        for known in self._last.values():
            if known["host"] == self._host and known["pid"] != os.getpid():
                with contextlib.suppress(psutil.Error):
                    process = psutil.Process(known["pid"])
                    if process.status() == psutil.STATUS_STOPPED:
                        process.kill()


def _read_once(file: Path) -> str:
    """Return the stack of a process that crashed, from the file that it left, and delete that."""
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
        file.unlink()
    except OSError:
        return ""
    # "Fatal Python error: ...", then other threads, then the one that crashed, then a list of extension modules.
    error, _, rest = text.partition("\n")
    return "\n".join(filter(None, [error, "".join(rest.partition("Current thread")[1:]).partition("\n\n")[0]]))


def _calls() -> dict[str, int]:
    """Return how many collectives this rank has begun in each of its groups, by the names of the groups."""
    groups = list(sys.modules["torch.distributed"].distributed_c10d._world.pg_map)
    return {_name_of(group): group._get_sequence_number_for_group() for group in groups}


def _name_of(group: Any) -> str:
    return str(group.group_name if group.group_desc in ("", "undefined") else group.group_desc)


def resume_command(argument: str) -> str:
    """Return the command that started this job, with ``argument`` where it lacks it."""
    launchers = launcher_processes()
    line = launchers[-1].cmdline() if launchers else [sys.executable, *sys.argv]
    if line and os.path.basename(line[0]).startswith("python") and len(line) > 1 and not line[1].startswith("-"):
        line = [os.path.basename(line[1]), *line[2:]] if launchers else line
    text = shlex.join(hidden_words(line))
    return text if argument in text else f"{text} {argument}"
