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
# A killed attempt loses at most this much of its account: it counts as time in which nothing ran.
_WRITE_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One process group's part of a run: from one start to the next.

    Args:
        started: seconds since 1970.
        seconds: from the start of the main process until it was last seen.
        apart: the seconds of these that were not training, by what they were spent on.
        first_step, last_step: optimizer steps done before and after it.
    """

    started: float
    seconds: float
    apart: Mapping[str, float]
    first_step: int
    last_step: int

    @classmethod
    def read(cls, row: Any) -> Attempt:
        """Make an attempt of a row of the file.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: the row is none.
        """
        apart = {str(name): float(seconds) for name, seconds in row["apart"].items()}
        return cls(
            started=float(row["started"]),
            seconds=float(row["seconds"]),
            apart=apart,
            first_step=int(row["first_step"]),
            last_step=int(row["last_step"]),
        )


class Attempts:
    """This attempt of a run, and those before it in the same folder; the main process writes them.

    Args:
        directory: of the run, claimed.
        meter: its clock.
        step: optimizer steps done so far.
    """

    def __init__(self, directory: RunDirectory, meter: Meter, step: int) -> None:
        self.directory = directory
        self.meter = meter
        self.first_step = step
        self.started = time.time() - meter.seconds
        self.before = _read(directory)
        self._next_write = 0.0

    def note(self, step: int, *, now: bool = False) -> None:
        """Write how far this attempt is, every few seconds, or ``now``."""
        if not self.directory.main:
            return
        if time.monotonic() < self._next_write and not now:
            return

        self._next_write = time.monotonic() + _WRITE_SECONDS
        rows = [asdict(attempt) for attempt in self._all(step)]
        path = self.directory.path / FILE
        self.directory.write(part_of(path).name, json.dumps(rows, indent=1) + "\n")
        os.replace(part_of(path), path)

    def account(self, step: int) -> dict[str, Any]:
        """Return the parts of the wall time since the first start, and how much of it was good.

        The parts add up to the wall time. Writes the file as well.
        """
        self.note(step, now=True)
        return account(self._all(step))

    def _all(self, step: int) -> list[Attempt]:
        this_attempt = Attempt(
            started=self.started,
            seconds=self.meter.seconds,
            apart=dict(self.meter.spent),
            first_step=self.first_step,
            last_step=step,
        )
        return [*self.before, this_attempt]


def _read(directory: RunDirectory) -> list[Attempt]:
    """Return the attempts before; none where the file cannot be read: no account stops a run."""
    try:
        return [Attempt.read(row) for row in read_json(directory.path / FILE)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []


def account(attempts: Sequence[Attempt]) -> dict[str, Any]:
    """Add up attempts, in their order.

    Steps that a later attempt starts before were trained in vain: their part of the training is
    ``redone``. ``down`` is the time between attempts.
    """
    parts = defaultdict(float, {"training": 0.0, "redone": 0.0, "down": 0.0})
    for number, attempt in enumerate(attempts):
        for name, seconds in attempt.apart.items():
            parts[name] += seconds

        training = max(0.0, attempt.seconds - sum(attempt.apart.values()))
        steps = attempt.last_step - attempt.first_step
        later_starts = [later.first_step for later in attempts[number + 1 :]]
        last_kept_step = min([attempt.last_step, *later_starts])
        kept_steps = max(0, last_kept_step - attempt.first_step)
        kept = training * kept_steps / max(1, steps)
        parts["training"] += kept
        parts["redone"] += training - kept

        if number > 0:
            before = attempts[number - 1]
            down = attempt.started - before.started - before.seconds
            parts["down"] += max(0.0, down)  # clocks may have been set back

    wall = sum(parts.values())
    goodput = parts["training"] / wall if wall else 0.0
    return {
        "count": len(attempts),
        "wall_seconds": round(wall, 3),
        "seconds": {name: round(seconds, 3) for name, seconds in parts.items()},
        "goodput": round(goodput, 4),
    }
