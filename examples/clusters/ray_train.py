"""Ray Train: Ray starts a process for each worker and connects them; after a failure it starts them
again.

    pip install 'ray[train]'
    python examples/clusters/ray_train.py --workers 2 --output_dir /shared/digits

The number of workers may change from one run to the next: with ``global_batch_size`` in the config
the curve stays. The strategy is DDP; another one: ``--accel_config
examples/clusters/accel_configs/fsdp.yaml``.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import ray.train
from ray.train.torch import TorchTrainer

import trainer


class Report(trainer.Callback):
    """Tells Ray the numbers of evaluations; the checkpoints stay where the run is.

    A report waits for the controller, which looks every two seconds: too long for each logged step.
    """

    def on_step(self, run: trainer.Run, info: trainer.StepInfo) -> None:
        if info.evaluation is not None:
            ray.train.report({"step": info.step, **info.evaluation})


def work(settings: dict[str, Any]) -> None:
    """Train. Ray calls this in each worker, in a folder of its own."""
    os.chdir(settings["folder"])
    loaded = trainer.load_config(settings["arguments"])
    task, config = trainer.load_task(loaded)
    launched = trainer.launch(config, origins=loaded.origins, accel_config=loaded.accel_config)
    training = trainer.Trainer(task, config, launched, callbacks=[Report()], origins=loaded.origins)
    training.fit()
    training.close()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--config", default="examples/configs/digits_cnn.yaml")
    parser.add_argument("--gpu", action="store_true", help="a GPU for each worker")
    parser.add_argument(
        "--max_failures", type=int, default=3, help="how often Ray starts the workers again"
    )
    parser.add_argument(
        "--storage", default="runs/ray", help="folder of Ray's own notes, seen by all machines"
    )
    own, arguments = parser.parse_known_args()
    settings = {
        "folder": os.getcwd(),
        "arguments": ["--config", own.config, *arguments, "--resume", "auto"],
    }
    TorchTrainer(
        work,
        train_loop_config=settings,
        scaling_config=ray.train.ScalingConfig(num_workers=own.workers, use_gpu=own.gpu),
        run_config=ray.train.RunConfig(
            storage_path=str(Path(own.storage).resolve()),
            failure_config=ray.train.FailureConfig(max_failures=own.max_failures),
        ),
    ).fit()


if __name__ == "__main__":
    main()
