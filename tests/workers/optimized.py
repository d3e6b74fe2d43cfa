"""Run under one layout: a small language model with one optimizer after the other.

    ranks ... tests/workers/optimized.py accel_configs/fsdp.yaml FOLDER '{"lion": {"optimizer": ...}, ...}'

Each leaves ``FOLDER/<name>.json`` with its losses, or the error that ended it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from brought import configured
from brought_language import Language
from of_all_ranks import leave

import trainer
from trainer import Trainer
from trainer.launching import launch


def main() -> None:
    file, folder, cases = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    folder.mkdir(parents=True, exist_ok=True)
    launched = launch(configured(2 if "single" not in file else 1), accel_config=file)
    for name, settings in cases.items():
        try:
            config = configured(
                launched.plan.world_size, output_dir=str(folder / name), eps=1e-8, **settings
            )
            run = Trainer(Language(kind="llama"), config, launch(config, accel_config=file))
            found = {
                "losses": [info.metrics["loss"] for info in run.steps() if info.metrics],
            }
            run.run.close()
        except trainer.TrainerError as error:
            found = {"error": str(error)}
        leave(folder / f"{name}.json", found)


if __name__ == "__main__":
    trainer.run_and_exit(main)
