"""Print the rooms that a training enters, in order: the walks of docs/architecture.md.

    python docs/walks.py

The digits on one process, followed with ``sys.setprofile``: a room is entered when a function of it
is called.
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from house import PACKAGE, room_of

ROOT = PACKAGE.parent


@contextlib.contextmanager
def followed(rooms: list[str]) -> Iterator[None]:
    """Add the rooms that are entered inside to ``rooms``, each at its first entry."""

    def note(frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_filename
        if (
            event == "call"
            and name.startswith(inside)
            and (room := room_of(Path(name))) not in rooms
        ):
            rooms.append(room)

    inside = f"{PACKAGE}/"
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)


def walks(output_dir: str) -> dict[str, list[str]]:
    """Train a few steps into ``output_dir`` and follow a start, a batch, a save and a resume."""
    sys.path[:0] = [str(ROOT / "examples"), str(ROOT)]
    from trainer import Trainer, launch, load_config, load_task

    found: dict[str, list[str]] = {"start": [], "batch": [], "save": [], "resume": []}
    words = ["--config", str(ROOT / "examples/configs/digits_cnn.yaml"), "--output_dir", output_dir]
    words += [
        "--max_steps",
        "4",
        "--save_in_background",
        "false",
        "--eval_every",
        "null",
        "--resume",
        "auto",
    ]

    def make() -> Trainer:
        loaded = load_config(words)
        task, config = load_task(loaded)
        return Trainer(task, config, launch(config))

    with followed(found["start"]):
        run = make()
    steps = run.steps()
    next(steps)  # the first one is logged
    with followed(found["batch"]):
        next(steps)
    with followed(found["save"]):
        run.run.save()
    run.run.close()
    with followed(found["resume"]):
        run = make()
    assert run.run.step == 2
    run.run.close()
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(json.dumps(walks(f"{folder}/run"), indent=1))
