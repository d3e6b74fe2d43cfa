"""Trains configs one after the other, in one process of a job: a launch costs more than a small training.

    ranks ... tests/workers/trainings.py '{"folder": ..., "files": {NAME: LAUNCH_FILE}, "words": [...], "ends": false}'

Each ``<folder>/<name>.yaml`` is trained into ``<folder>/<name>``. An error that ends a training is
left in ``<folder>/<name>.error``: a line, if every rank says the same.
"""

import json
import sys
from pathlib import Path

from of_all_ranks import of_all, write

import trainer
from trainer.script import train


def main() -> None:
    told = json.loads(sys.argv[1])
    sys.path += ["examples", "benchmarks", str(Path(told["folder"]).parent)]  # of tasks
    for name, file in told["files"].items():
        folder = Path(told["folder"], name)
        words = ["--config", f"{folder}.yaml", "--output_dir", str(folder), file, *told["words"]]
        try:
            train(words)
        except (trainer.TrainerError, RuntimeError) as error:
            if told["ends"]:
                raise  # the other ranks wait inside of a collective
            said = dict.fromkeys(of_all(f"{type(error).__name__}: {error}"))
            write(folder.with_name(f"{name}.error"), "\n".join(said))


if __name__ == "__main__":
    trainer.run_and_exit(main)
