"""Run on several ranks: ZeRO-1 and 2 as they run on GPUs, with ``overlap_comm`` and small buckets.

    ranks ... tests/workers/overlapped.py FOLDER

Leaves ``<folder>/found.json``: the losses by stage, without and with it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from of_all_ranks import leave
from uneven_task import SETTINGS, Small

import trainer
from trainer import TrainConfig, Trainer
from trainer.launching import launch

BUCKET = 8  # elements: several buckets, also for a small model


def losses(folder: Path, stage: int, *, overlaps: bool) -> list[float]:
    name = f"{stage} {overlaps}"
    zero: dict[str, int | bool] = {"stage": stage}
    if overlaps:
        zero.update(overlap_comm=True, reduce_bucket_size=BUCKET)
    path = folder / f"{name}-{os.environ['RANK']}.json"
    path.write_text(json.dumps({"zero_optimization": zero}))
    config = TrainConfig(output_dir=str(folder / name), keep_last=0, **SETTINGS)
    made = Trainer(Small(), config, launch(config, deepspeed=str(path)))
    assert made.run.strategy.zero.overlap_comm == overlaps  # type: ignore[attr-defined]
    found = [info.metrics["loss"] for info in made.steps() if info.metrics]
    made.run.close()
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    found = {}
    for stage in (1, 2):
        found[str(stage)] = [losses(folder, stage, overlaps=each) for each in (False, True)]
    leave(folder / "found.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
