"""Run on several ranks: steps of the small Llama with ``same_bits`` and without, in turn.

    ranks ... tests/workers/bits_cost.py FOLDER ACCEL_CONFIG

Prints the median milliseconds of a step and their ratio in pairs of trainings, from the least to the
largest: of the clock, and of this rank's CPU time, which other programs on the machine change less.
"""

from __future__ import annotations

import statistics
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

sys.path.append("examples")

from llama_stdlib import LlamaStdlib

import trainer
from trainer import Callback, Run, StepInfo, TrainConfig, Trainer
from trainer.launching import launch

STEPS, FIRST, PAIRS = 9, 2, 5  # the first steps warm up


class Clocks(Callback):
    def __init__(self) -> None:
        self.read: list[tuple[float, float]] = []

    def on_step(self, run: Run, info: StepInfo) -> None:
        self.read.append((time.perf_counter(), time.process_time()))


def train(folder: Path, file: str, *, same_bits: bool) -> list[float]:
    """Return the median milliseconds of a step, of the clock and of the CPU."""
    settings: dict[str, Any] = {"max_steps": STEPS, "log_every": 1, "keep_last": 0}
    config = TrainConfig(
        task="llama_stdlib:LlamaStdlib",
        output_dir=str(folder),
        micro_batch_size=2,
        global_batch_size=24,
        sanity_evaluation=False,
        same_bits=same_bits,
        max_grad_norm=1.0,
        **settings,
    )
    clocks = Clocks()
    task = LlamaStdlib(max_bytes=300_000)
    made = Trainer(task, config, launch(config, accel_config=file), callbacks=[clocks])
    for info in made.steps():
        if info.step == STEPS - 1:
            break
    made.run.close()
    found = []
    for reads in zip(*clocks.read[FIRST - 1 :], strict=True):
        times = [1e3 * (now - before) for before, now in pairwise(reads)]
        found.append(statistics.median(times))
    return found


def main() -> None:
    folder, file = Path(sys.argv[1]), sys.argv[2]
    pairs = [
        [train(folder / f"{mode}-{number}", file, same_bits=mode) for mode in (False, True)]
        for number in range(PAIRS)
    ]
    for place, name in enumerate(("clock", "CPU")):
        off, on = ([pair[mode][place] for pair in pairs] for mode in (0, 1))
        ratios = sorted(b / a for a, b in zip(off, on, strict=True))
        medians = f"{statistics.median(off):.0f} ms, on {statistics.median(on):.0f}"
        spread = f"x{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        print(f"{Path(file).stem} {name}: off {medians}, {spread}")


if __name__ == "__main__":
    trainer.run_and_exit(main)
