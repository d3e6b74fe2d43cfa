"""The board of a job: what each rank wrote last, in the store that all ranks share."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import cache
from typing import Any

from .identity import Identity
from .observation import Address, Report

_WHO = "samecurve/who"
_BYTES_OF_A_ROW = 500
_BYTES_A_SECOND = 1e6  # that reading the whole board may cost the store, all ranks together


@dataclass(frozen=True, kw_only=True)
class Who:
    """What does not change while a process lives."""

    host: str
    identity: Identity
    observer: Address

    @classmethod
    def read(cls, text: str) -> Who:
        values = json.loads(text)
        identity = Identity(**values["identity"])
        observer = Address(**values["observer"])
        return cls(host=values["host"], identity=identity, observer=observer)


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a rank writes twice a second.

    Args:
        count: grows with each row.
        step: optimizer steps done; ``phase``: of the training.
        unmoved: seconds since it moved: a step, a phase, a collective that it began.
        doing: the call that its main thread is in; ``in_collective`` and ``outside`` are those of
            ``waits.Doing``.
        begun: collectives that it has begun: a name to show and their number, by group.
        report: of its observer, while it does not move.
        crash: the file to which the process writes its stack where C++ ends it; "" for none.
        left: why it is watched no more; "" while it is.
    """

    count: int
    step: int
    phase: str
    unmoved: float
    doing: str
    in_collective: bool = False
    outside: str = ""
    begun: dict[str, tuple[str, int]] = field(default_factory=dict)
    report: Report | None = None
    crash: str = ""
    left: str = ""

    def text(self) -> str:
        return json.dumps(vars(self), default=vars)

    @classmethod
    def read(cls, text: str) -> Row:
        values = json.loads(text)
        begun = {group: (name, number) for group, (name, number) in values.pop("begun").items()}
        report = values.pop("report")
        return cls(**values, begun=begun, report=None if report is None else Report(**report))


# Of the ranks that have come so far. The processes of a job stay the same, so all uses of the board
# share it.
_who: dict[int, Who] = {}


class Board:
    """The rows of all ranks, over a connection of its own to the store.

    The wait of another thread must not hold it up. Each method that asks the store may wait for
    ever, where the machine of the store is cut off or its process is stopped.

    Args:
        name: of this use of the board, the same on all ranks.
        answer_seconds: the store's own limit for an answer.

    Attributes:
        rows: the last ones that were read, by rank.
        heard: when each row was first seen, by this process's clock.
        who: of the ranks that have come so far.
        shared: the connection; None before ``introduce``.
    """

    def __init__(self, name: str, *, rank: int, world_size: int, answer_seconds: float) -> None:
        self.rank = rank
        self.world_size = world_size
        self.rows: dict[int, Row] = {}
        self.heard: dict[int, float] = {}
        self.who = _who
        self.shared: Any = None

        self._name = name
        self._answer_seconds = answer_seconds
        self._store: Any = None
        self._read_all = 0.0
        self._all_period = world_size**2 * _BYTES_OF_A_ROW / _BYTES_A_SECOND

    @property
    def is_connected(self) -> bool:
        """Return whether this rank has introduced itself."""
        return self._store is not None

    def introduce(self, who: Who) -> None:
        """Connect to the store, and tell the others who this rank is."""
        from torch.distributed.distributed_c10d import PrefixStore

        from ..private.torch import default_store

        shared = default_store().clone()
        shared.set_timeout(timedelta(seconds=self._answer_seconds))

        self.who[self.rank] = who
        shared.set(f"{_WHO}/{self.rank}", json.dumps(asdict(who)))
        self.shared = shared
        self._store = PrefixStore(f"samecurve/watch/{self._name}", shared)

    def meet(self, rank: int) -> None:
        """Wait until a rank has introduced itself, and read who it is.

        Raises:
            RuntimeError: it has not come in time.
        """
        if rank not in self.who:
            self.who[rank] = Who.read(self.shared.get(f"{_WHO}/{rank}"))

    def read_who(self) -> None:
        """Read who the others are, as far as they have come."""
        for rank in range(self.world_size):
            key = f"{_WHO}/{rank}"
            if rank not in self.who and self.shared.check([key]):
                self.who[rank] = Who.read(self.shared.get(key))

    def write(self, row: Row) -> None:
        """Write the row of this rank."""
        self.rows[self.rank] = row
        self._store.set(str(self.rank), row.text())

    def read(self, ranks: Iterable[int]) -> None:
        """Read the rows of ranks; those that have written none are left out."""
        wanted = self._written([rank for rank in ranks if rank != self.rank])
        if not wanted:
            return
        texts = self._store.multi_get([str(rank) for rank in wanted])

        now = time.monotonic()
        for rank, text in zip(wanted, texts, strict=True):
            row = Row.read(text)
            if rank not in self.rows or row.count != self.rows[rank].count:
                self.heard[rank] = now
            self.rows[rank] = row

    def _written(self, ranks: list[int]) -> list[int]:
        """Return those of the ranks that have written a row. One question is enough for most."""
        missing = [rank for rank in ranks if rank not in self.rows]
        if not missing or self._store.check([str(rank) for rank in missing]):
            return ranks
        return [rank for rank in ranks if rank in self.rows or self._store.check([str(rank)])]

    def read_now_and_then(self) -> None:
        """Read all rows, seldom enough for a large job.

        So a report has rows that are not from the start, though nobody needed them before.
        """
        now = time.monotonic()
        if now - self._read_all >= self._all_period:
            self._read_all = now
            self.read(range(self.world_size))

    def has_verdict(self) -> bool:
        """Return whether a rank has ended the job."""
        return bool(self._store.check(["verdict"]))

    def set_verdict(self) -> None:
        """Tell all ranks that the job ends, and that this rank says why."""
        self._store.set("verdict", "told")


@cache
def rank_of_store() -> int | None:
    """Return the rank whose process holds the store; None where the launcher holds it."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return None
    return 0
