"""Run on several ranks: the same training with gradients exchanged in float32 and in bf16.

    ranks ... tests/workers/reduce_dtypes.py FOLDER ACCEL_CONFIG ...

Leaves ``<folder>/found.json``: for each file, precision and dtype the losses, what was sent, and
what the plan says.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from of_all_ranks import leave
from precision import REDUCED, note_reductions
from uneven_task import Small

import trainer
from trainer import TrainConfig, Trainer
from trainer.launching import launch

STEPS = 10


def one(file: str, folder: Path, precision: str, dtype: str) -> dict[str, Any]:
    config = TrainConfig(
        task="uneven_task:Small",
        output_dir=str(folder),
        max_steps=STEPS,
        log_every=1,
        micro_batch_size=4,
        accumulation_steps=2,
        sync_each_batch="fsdp" in file,
        optimizer="sgd",
        lr=2e-2,
        keep_last=0,
        mixed_precision=precision,  # type: ignore[arg-type]
        reduce_dtype=dtype,  # type: ignore[arg-type]
    )
    made = Trainer(Small(), config, launch(config, accel_config=file))
    REDUCED.clear()
    losses = [info.metrics["loss"] for info in made.steps() if info.metrics]
    made.run.close()
    return {
        "losses": losses,
        "sent": sorted(REDUCED),
        "plan": made.run.facts["precision"]["reduction"],
        "gradients": made.run.facts["precision"]["gradients"],
    }


def main() -> None:
    note_reductions()
    folder, found = Path(sys.argv[1]), {}
    for file in sys.argv[2:]:
        for precision in ("no", "bf16"):
            for dtype in ("float32", "bf16"):
                name = f"{Path(file).stem} {precision} {dtype}"
                found[name] = one(file, folder / name, precision, dtype)
    leave(folder / "found.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
