"""Trains several configs one after the other, in one process of a job: a launch costs more.

ranks ... tests/workers/recipes.py '{"accel_config": ..., "runs": {CONFIG: OUTPUT_DIR},
    "settings": [...]}'
"""

from __future__ import annotations

import json
import sys

import trainer
from trainer.script import train


def main() -> None:
    told = json.loads(sys.argv[1])
    for config, output_dir in told["runs"].items():
        words = ["--config", config, "--output_dir", output_dir]
        train([*words, "--accel_config", told["accel_config"], *told["settings"]])


if __name__ == "__main__":
    trainer.run_and_exit(main)
