"""How long a start takes: imports, help, a refused config, and the way from a launcher to the end
of the first step.

Each command runs beside the one that it is held against, in turns of random order; their difference
counts. The first step is one of the MLP, by the same launcher: with torch alone, and with
samecurve.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from .coordinator import origin, prepare
from .judge import interval
from .tables import ROOT, TABLES

ROUNDS = 5
BIN = Path(sys.executable).parent
PYTHON = str(BIN / "python")
LAUNCHERS = {
    "python": ("step", [PYTHON]),
    "torchrun, two processes": (
        "step2",
        [str(BIN / "torchrun"), "--standalone", "--nproc_per_node=2"],
    ),
    "accelerate launch, two processes": (
        "step2",
        [str(BIN / "accelerate"), "launch", "--config_file", "accel_configs/ddp.yaml"],
    ),
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """A command, and the one that it is held against, if any.

    Args:
        target: seconds that their difference should be at most.
        folder: where the end of the first step is noted; without one the command's own end counts.
    """

    name: str
    target: float
    command: list[str]
    beside: list[str] | None = None
    folder: Path | None = None
    code: int = 0

    def seconds(self, command: list[str]) -> float:
        if self.folder is not None:
            shutil.rmtree(self.folder / "run of start", ignore_errors=True)
        begin = time.time()
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        end = time.time()
        assert done.returncode == self.code, done.stdout + done.stderr
        return (
            end if self.folder is None else float((self.folder / "first step").read_text())
        ) - begin

    def turn(self, draw: random.Random) -> tuple[float, float]:
        """Run both, in random order; return the seconds of each."""
        commands = [self.command] if self.beside is None else [self.command, self.beside]
        found = {
            number: self.seconds(commands[number])
            for number in draw.sample(range(len(commands)), len(commands))
        }
        return found[0], found.get(1, 0.0)


def rows(folder: Path) -> list[Row]:
    (folder / "wrong.yaml").write_text(
        "task: digits_cnn:DigitsCNN\nmax_steps: 5\nmicro_batch_sise: 3\n"
    )
    trainer = str(BIN / "trainer")
    found = [
        Row(
            name="import trainer, beside import torch",
            target=0.05,
            command=[PYTHON, "-c", "import torch, trainer"],
            beside=[PYTHON, "-c", "import torch"],
        ),
        Row(name="trainer --help", target=0.5, command=[trainer, "--help"]),
        Row(
            name="a config that is refused",
            target=0.5,
            command=[PYTHON, "examples/train.py", "--config", str(folder / "wrong.yaml")],
            code=2,
        ),
    ]
    for name, (table, launcher) in LAUNCHERS.items():
        place = folder / name
        place.mkdir()
        prepare(TABLES[table], str(place), block=1, rounds=1)
        ours, beside = (
            [*launcher, "-m", "benchmarks.peers.first_step", str(place), contender]
            for contender in ("samecurve", "by_hand")
        )
        title = f"to the first step by {name}, beside a loop of torch alone"
        found.append(Row(name=title, target=0.5, command=ours, beside=beside, folder=place))
    return found


def measure(command: str, rounds: int = ROUNDS) -> dict[str, Any]:
    """Run every row, the rows in turns as well."""
    begin, about = time.monotonic(), origin(command)
    os.environ.update(OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    # Packages are compiled when they are installed; what runs from a checkout is, in the round that
    # is not counted.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    draw = random.Random(0)
    with tempfile.TemporaryDirectory(prefix="peers-") as folder:
        every = rows(Path(folder))
        pairs: dict[str, list[tuple[float, float]]] = {row.name: [] for row in every}
        for number in range(rounds + 1):
            for row in every:
                pair = row.turn(draw)
                if number:  # the first reads files that are not in memory yet
                    pairs[row.name].append(pair)
    found = []
    for row in every:
        more = [ours - beside for ours, beside in pairs[row.name]]
        found.append(
            {
                "name": row.name,
                "seconds": round(median(more), 3),
                "interval": [round(end, 3) for end in interval(more)],
                "in_all": round(median(ours for ours, _ in pairs[row.name]), 3),
                "target": row.target,
            }
        )
    return {
        "table": "start",
        "title": "Start",
        "problems": [],
        "rows": found,
        "rounds": rounds,
        "seconds": round(time.monotonic() - begin),
        **about,
    }
