"""Run on several ranks: steps of the small Llama with ``same_bits`` and without, in turn.

    ranks ... tests/workers/bits_cost.py FOLDER ACCEL_CONFIG

Prints the median and the least milliseconds of a step: of the clock, and of this rank's CPU time, which
other programs on the machine hardly change.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.append("examples")

from llama_stdlib import LlamaStdlib

import trainer
from trainer import Callback, Run, StepInfo, TrainConfig, Trainer
from trainer.launching import launch

STEPS, FIRST = 9, 2  # the first steps warm up


class Clocks(Callback):
    def __init__(self) -> None:
        self.read: list[tuple[float, float]] = []

    def on_step(self, run: Run, info: StepInfo) -> None:
        self.read.append((time.perf_counter(), time.process_time()))


def train(folder: Path, file: str, *, same_bits: bool) -> list[list[float]]:
    """Return the milliseconds of each step, of the clock and of the CPU."""
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
    steps = zip(clocks.read[FIRST:], clocks.read[FIRST - 1 :], strict=False)
    return [[1e3 * (now - before) for now, before in zip(a, b, strict=True)] for a, b in steps]


def main() -> None:
    folder, file = Path(sys.argv[1]), sys.argv[2]
    found: dict[bool, list[list[float]]] = {False: [], True: []}
    for number in range(3):
        for mode in found:
            found[mode] += train(folder / f"{mode}-{number}", file, same_bits=mode)
    for place, name in enumerate(("clock", "CPU")):
        off, on = ([step[place] for step in found[mode]] for mode in found)
        of_both = [(min(times), statistics.median(times)) for times in (off, on)]
        text = ", ".join(f"{least:.0f} / {middle:.0f} ms" for least, middle in of_both)
        ratios = [b / a for a, b in zip(*of_both, strict=True)]
        print(f"{Path(file).stem} {name}: off, on: {text}; x{ratios[0]:.2f} / x{ratios[1]:.2f}")


if __name__ == "__main__":
    trainer.run_and_exit(main)
