r"""The training script of a trial of Determined (HPE MLDE).

Metrics, checkpoints and preemption go through its Core API.

    pip install determined
    torchrun --nproc_per_node 2 examples/clusters/determined_train.py --checkpoint_storage DIR \
        --accel_config examples/clusters/accel_configs/fsdp.yaml \
        --config examples/configs/digits_cnn.yaml

Off the cluster the Core API keeps checkpoints in the folder that is named, logs the metrics and
never preempts.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import determined as det

import trainer

FILES = ("config.yaml", "plan.json", "metrics.jsonl", "log.txt")


class CoreAPI(trainer.Callback):
    """Reports logged steps and evaluations, hands complete checkpoints over, and stops where the
    cluster wants to.

    Args:
        core: Determined's context.
        asks_every: optimizer steps between two questions whether to stop; each is a broadcast among
            all processes.
    """

    def __init__(self, core: det.core.Context, asks_every: int = 10) -> None:
        self.core, self.asks_every = core, asks_every
        self.uploaded: set[str] = set()

    def on_step(self, run: trainer.Run, info: trainer.StepInfo) -> None:
        if run.is_main:
            if info.metrics is not None:
                self.core.train.report_training_metrics(info.step, info.metrics)
            if info.evaluation is not None:
                self.core.train.report_validation_metrics(info.step, info.evaluation)
            self.core.train.report_progress(info.step / run.total_steps)
            self._upload(run)
        # All processes learn the chief's answer at this very step.
        if info.step % self.asks_every == 0 and self.core.preempt.should_preempt():
            run.stop("Determined wants the machines back", agreed=True)

    def on_end(self, run: trainer.Run, summary: Mapping[str, object]) -> None:
        if run.is_main:
            self._upload(run)

    def _upload(self, run: trainer.Run) -> None:
        """Copy the newest complete checkpoint into Determined's storage, and the files that make it
        that of a run.
        """
        newest = max((run.directory.path / "checkpoints").glob("step-*"), default=None)
        if newest is None or newest.name in self.uploaded:
            return
        self.uploaded.add(newest.name)
        step = int(newest.name.removeprefix("step-"))
        with self.core.checkpoint.store_path({"steps_completed": step}) as (path, _):
            shutil.copytree(newest, path / "checkpoints" / newest.name)
            for name in FILES:
                shutil.copy(run.directory.path / name, path)


def bring_back(core: det.core.Context, output_dir: Path) -> None:
    """Copy the trial's newest checkpoint from Determined's storage to where ``--resume auto`` looks
    for it.

    Needed where the run's folder is gone with a container's own disk. Collective: call on every
    rank.
    """
    newest = core.info.latest_checkpoint if core.info is not None else None
    if newest is not None and core.distributed.rank == 0 and not (output_dir / FILES[0]).exists():
        mode = det.core.DownloadMode.NoSharedDownload
        with core.checkpoint.restore_path(newest, download_mode=mode) as path:
            shutil.copytree(path / "checkpoints", output_dir / "checkpoints")
            for name in FILES:
                shutil.copy(path / name, output_dir)
    core.distributed.broadcast(None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoint_storage", help="folder for checkpoints off the cluster")
    own, arguments = parser.parse_known_args()
    loaded = trainer.load_config(arguments)
    task, config = trainer.load_task(loaded)
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    distributed = det.core.DistributedContext.from_torch_distributed() if several else None
    with det.core.init(distributed=distributed, checkpoint_storage=own.checkpoint_storage) as core:
        bring_back(core, Path(config.output_dir))
        launched = trainer.launch(config, origins=loaded.origins, accel_config=loaded.accel_config)
        training = trainer.Trainer(
            task, config, launched, callbacks=[CoreAPI(core)], origins=loaded.origins
        )
        training.fit()
        training.close()


if __name__ == "__main__":
    trainer.run_and_exit(main)
