"""Run on several ranks: trainings with a wrong bit each, compared with a right one by their digests.

    ranks ... tests/workers/flips.py FOLDER ACCEL_CONFIG COUNT

Prints a line for each bit, and how many were named: step and tensor, and for a gradient the rank and
the micro-batch as well.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from same_bits import Cross, Flip, Planted

import trainer
from trainer import Task, TrainConfig, Trainer
from trainer.commands.bits import first_difference, read_digests
from trainer.launching import launch

STEPS = 4


# The names of the parameters of which each rank has a part.
HELD: list[list[str]] = []


def train(folder: Path, file: str, task: Task, *callbacks: Any) -> Any:
    # In logged steps ZeRO's own copies are compared, which ends a run with a wrong weight.
    config = TrainConfig(
        task="same_bits:Cross",
        output_dir=str(folder),
        max_steps=STEPS + 1,
        log_every=100,
        micro_batch_size=2,
        global_batch_size=24,
        max_grad_norm=0.5,
        lr=1e-2,
        same_bits=True,
        sanity_evaluation=False,
        keep_last=0,
    )
    made = Trainer(task, config, launch(config, accel_config=file), callbacks=callbacks)
    for info in made.steps():  # the evaluation of the last step would find copies that differ
        if info.step == STEPS:
            break
    held = [shard.name for shard in made.run.strategy.shards() if shard.tensor.numel()]
    HELD[:] = made.run.agreement.gather(held)
    made.run.close()
    return read_digests(folder / "digests.jsonl")[1] if made.run.is_main else None


def main() -> None:
    folder, file, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    right = train(folder / "right", file, Cross())
    names = [name for name, _ in Cross().build_model().named_parameters()]
    world = dist.get_world_size()
    drawn = random.Random(0)
    found: dict[str, list[int]] = {}
    for number in range(count):
        what = ("gradient", "weight", "exp_avg")[number % 3]
        name, step = drawn.choice(names), drawn.randint(2, STEPS)
        holders = [rank for rank in range(world) if what == "gradient" or name in HELD[rank]]
        rank = drawn.choice(holders)
        micro, bit = drawn.randrange(24 // 2 // world), drawn.randrange(31)
        place = folder / str(number)
        if what == "gradient":
            task = Planted(name=name, rank=rank, step=step, micro=micro, bit=bit)
            wrong = train(place, file, task)
        else:  # behind a step, so that the next is the first wrong one
            wrong = train(place, file, Cross(), Flip(what, name, rank, step - 1, bit))
        if right is None or wrong is None:
            continue
        text = first_difference(names, wrong, right)
        named = [
            text.startswith(f"step {step} differs:"),
            name in text,
            f"{micro + 1} of rank {rank} (1 of" in text or f"of rank {rank}" in text,
        ]
        print(what, name, f"rank {rank} step {step} micro {micro} bit {bit}:", text or "NOT SEEN")
        sums = found.setdefault(what, [0, 0, 0, 0, 0])
        for place_of, is_so in enumerate((True, bool(text), *named)):
            sums[place_of] += is_so
    for what, (all_, seen, step, tensor, rank) in found.items():
        print(f"{what}: {all_} bits, seen {seen}, step {step}, tensor {tensor}, rank {rank}")


if __name__ == "__main__":
    trainer.run_and_exit(main)
