"""Count how a training goes through the rooms of the package: a start, a batch, a save, a resume.

    python docs/walks.py

The digits on one process, followed with ``sys.setprofile``. A call that leads into another room is
an entry; one into a room that the walk had left before is a return. Prints the figures as JSON.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType

from house import PACKAGE, room_of

ROOT = PACKAGE.parent


@dataclass
class Walk:
    """The rooms of one walk.

    Args:
        calls: of functions of the package.
        entries: calls that lead from one room into another.
        returns: entries into rooms that the walk has been in before.
        rooms: in the order of their first entries.
    """

    calls: int = 0
    entries: int = 0
    returns: int = 0
    rooms: list[str] = field(default_factory=list)


@contextlib.contextmanager
def followed(walk: Walk) -> Iterator[None]:
    """Follow what runs inside of the block."""
    inside = f"{PACKAGE}/"
    here = ""

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal here
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(inside):
            return
        walk.calls += 1
        room = room_of(Path(name))
        if room == here:
            return
        here = room
        walk.entries += 1
        if room in walk.rooms:
            walk.returns += 1
        else:
            walk.rooms.append(room)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def walks(output_dir: str) -> dict[str, Walk]:
    """Train a few steps into ``output_dir``; follow a start, a batch, a save and a resume."""
    sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]
    from trainer import Trainer, launch, load_config, load_task

    found = {name: Walk() for name in ("start", "batch", "save", "resume")}
    words = ["--config", str(ROOT / "examples/configs/digits_cnn.yaml"), "--output_dir", output_dir]
    words += ["--max_steps", "4", "--save_in_background", "false", "--eval_every", "null"]
    words += ["--resume", "auto"]

    def make() -> Trainer:
        loaded = load_config(words)
        task, config = load_task(loaded)
        return Trainer(task, config, launch(config))

    with followed(found["start"]):
        training = make()
    steps = training.steps()
    next(steps)  # the first one is logged
    with followed(found["batch"]):
        next(steps)
    with followed(found["save"]):
        training.run.save()
    training.close()
    with followed(found["resume"]):
        training = make()
    assert training.run.step == 2
    training.close()
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps({name: asdict(walk) for name, walk in walks(f"{folder}/run").items()}))
