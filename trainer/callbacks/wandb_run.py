"""A run on W&B: the same run for all attempts of a training, and never in the way of the training.

Online is tried only with a key, and given up if the server does not answer within seconds. wandb
itself would wait for 90 (wandb 0.31).
"""

from __future__ import annotations

import os
import secrets

from accelerate.tracking import WandBTracker

from ..checkpoint.disk import read_json
from ..config.naming import experiment_of
from ..config.train_config import DEFAULTS
from ..reporting.directory import RunDirectory
from ..run import Run

START_SECONDS = 10.0
UPLOAD_SECONDS = 60.0
FILE = "tracking.json"


class WandbRun(WandBTracker):  # type: ignore[misc]
    """Accelerate's tracker of W&B, which continues a run and goes offline without a server."""

    def __init__(self, training: Run) -> None:
        import wandb

        config, plan = training.config, training.plan
        # The terminal's lines are in log.txt already, and may hold secrets: console="off". W&B's
        # own description of the process would keep a secret of the command line. The configuration
        # has the machine and the versions.
        settings = wandb.Settings(
            console="off",
            init_timeout=START_SECONDS,
            finish_timeout=UPLOAD_SECONDS,
            save_code=False,
            silent=True,
            x_disable_meta=True,
        )
        project = config.project
        if project == DEFAULTS["project"]:
            project = os.environ.get("WANDB_PROJECT") or project
        super().__init__(
            project,
            id=run_id(training.directory),
            resume="allow",
            group=experiment_of(config),
            name=training.name,
            tags=[plan.strategy, f"world-{plan.world_size}", plan.mixed_precision, plan.device],
            dir=str(training.directory.path),
            mode=os.environ.get("WANDB_MODE", "online"),
            settings=settings,
        )
        self._training = training

    def start(self) -> None:
        """Start the run, offline without a key or if the server refuses or does not answer."""
        import wandb

        training = self._training
        is_online = self.init_kwargs["mode"] == "online"
        try:
            if is_online and not wandb.api.api_key:
                raise ConnectionError("no API key: wandb login stores one")
            super().start()
        except Exception as error:  # the client raises many kinds
            if not is_online:
                raise
            wandb.teardown()  # wandb's service still holds the run's id
            self.init_kwargs["mode"] = "offline"
            reason, _, _ = str(error).partition("\n")
            command = f"wandb sync {training.directory.path}/wandb/*run-*"
            training.say(f"wandb: offline ({reason}); upload later with: {command}")
            super().start()

        config = training.config
        if config.best_metric:
            self.run.define_metric(config.best_metric, summary=f"{config.best_mode},last")

    def finish(self) -> None:
        """Add the exported model if ``track_model`` asks for it, and end the run."""
        import wandb

        if self._training.config.track_model:
            metadata = {"step": self._training.step}
            model = wandb.Artifact(f"model-{self.run.id}", type="model", metadata=metadata)
            model.add_dir(str(self._training.directory.path / "model"))
            self.run.log_artifact(model)
        super().finish()

    def finish_as_failed(self) -> None:
        """End the run of a job that fails: the logged steps are kept, and W&B shows the failure."""
        self.run.finish(exit_code=1)


def run_id(directory: RunDirectory) -> str:
    """Return the run id on W&B: the id in the run's folder, else WANDB_RUN_ID, else a new id."""
    path = directory.path / FILE
    if not path.exists():
        name = os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
        directory.write_json(FILE, {"wandb": name})
    return str(read_json(path)["wandb"])
