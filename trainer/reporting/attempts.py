"""Where the time of a run went, over all of its attempts: attempts.json in its folder."""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..checkpoint.disk import part_of
from ..checkpoint.untrusted import read_json
from .directory import RunDirectory
from .meter import Meter

FILE = "attempts.json"
_EVERY_SECONDS = 5.0  # so much of a killed attempt counts as time in which nothing ran


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process group's part of a run.

    Args:
        started: seconds since 1970.
        seconds: from the start of the main process until it was last seen.
        apart: of these, by what they went into instead of training.
        first_step, last_step: optimizer steps done before and after it.
    """

    started: float
    seconds: float
    apart: Mapping[str, float]
    first_step: int
    last_step: int

    @classmethod
    def read(cls, row: Any) -> Attempt:
        """Make one of a row of the file. Raises ``LookupError``, ``TypeError`` or ``ValueError``
        where it is none.
        """
        apart = {str(name): float(spent) for name, spent in row["apart"].items()}
        started, seconds = float(row["started"]), float(row["seconds"])
        steps = int(row["first_step"]), int(row["last_step"])
        return cls(
            started=started, seconds=seconds, apart=apart, first_step=steps[0], last_step=steps[1]
        )


class Attempts:
    """This attempt of a run, and those before it in the same folder; the main process writes them.

    Args:
        directory: of the run, claimed.
        meter: its clock.
        step: optimizer steps done so far.
    """

    def __init__(self, directory: RunDirectory, meter: Meter, step: int) -> None:
        self.directory, self.meter, self.first_step = directory, meter, step
        self.started = time.time() - meter.seconds
        self.before, self._next = _read(directory), 0.0

    def note(self, step: int, *, now: bool = False) -> None:
        """Write down how far this attempt is, every few seconds, or ``now``."""
        if self.directory.main and (now or time.monotonic() >= self._next):
            self._next = time.monotonic() + _EVERY_SECONDS
            path = self.directory.path / FILE
            rows = json.dumps([asdict(one) for one in self._all(step)], indent=1)
            self.directory.write(part_of(path).name, rows + "\n")
            os.replace(part_of(path), path)

    def account(self, step: int) -> dict[str, Any]:
        """Return the parts of the wall time since the first start, which add up to it, and how much
        of it was good.
        """
        self.note(step, now=True)
        return account(self._all(step))

    def _all(self, step: int) -> list[Attempt]:
        apart, seconds = dict(self.meter.spent), self.meter.seconds
        now = Attempt(
            started=self.started,
            seconds=seconds,
            apart=apart,
            first_step=self.first_step,
            last_step=step,
        )
        return [*self.before, now]


def _read(directory: RunDirectory) -> list[Attempt]:
    try:
        return [Attempt.read(row) for row in read_json(directory.path / FILE)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []  # no account stops a run


def account(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Add up attempts, in their order.

    Steps that a later attempt began before were trained for nothing: their part of the training is
    ``redone``. ``down`` is the time between attempts.
    """
    parts = defaultdict(float, {"training": 0.0, "redone": 0.0, "down": 0.0})
    for number, one in enumerate(attempts):
        for name, spent in one.apart.items():
            parts[name] += spent
        training = max(0.0, one.seconds - sum(one.apart.values()))
        kept = max(
            0,
            min([one.last_step, *(later.first_step for later in attempts[number + 1 :])])
            - one.first_step,
        )
        good = training * kept / max(1, one.last_step - one.first_step)
        parts["training"] += good
        parts["redone"] += training - good
        if number:
            last = attempts[number - 1]
            parts["down"] += max(
                0.0, one.started - last.started - last.seconds
            )  # clocks may have been set back
    wall = sum(parts.values())
    return {
        "count": len(attempts),
        "wall_seconds": round(wall, 3),
        "seconds": {name: round(spent, 3) for name, spent in parts.items()},
        "goodput": round(parts["training"] / wall, 4) if wall else 0.0,
    }
