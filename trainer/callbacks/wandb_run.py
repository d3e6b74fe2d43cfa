"""A run on W&B: one for all attempts of a training, and never in the way of it.

Offline needs no key and no network. Online is tried only if there is a key, and given up if the
server does not answer within seconds. wandb itself would wait for 90 (wandb 0.31). The run's id is
kept in the run directory, so that a resumed training continues the same run.

The config goes before W&B's variables: WANDB_PROJECT and WANDB_RUN_GROUP hold if ``project`` and
``experiment`` are left out, and WANDB_TAGS are added.
"""

from __future__ import annotations

import json
import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any

from accelerate.tracking import WandBTracker

from ..config.naming import experiment_of
from ..config.train_config import DEFAULTS
from ..errors import ConfigError, Origin, Problem
from ..reporting.directory import RunDirectory
from ..run import Run
from ..text import is_secret

START_SECONDS = 10.0
UPLOAD_SECONDS = 60.0
FILE = "tracking.json"


class WandbRun(WandBTracker):  # type: ignore[misc]
    """Accelerate's tracker of W&B, which continues its run and goes offline without a server.

    Args:
        training: the run of this package, on its main process. ``run`` is the run on W&B.
    """

    def __init__(self, training: Run) -> None:
        import wandb

        config, plan = training.config, training.plan
        project = config.project
        if project == DEFAULTS["project"]:
            project = os.environ.get("WANDB_PROJECT") or project
        tags = [plan.strategy, f"world-{plan.world_size}", plan.mixed_precision, plan.device]
        tags += os.environ.get("WANDB_TAGS", "").split(",")

        # The terminal's lines are in log.txt already, and may hold what should not leave this
        # machine: console="off". W&B's own description of the process would keep a secret of the
        # command line.
        settings = wandb.Settings(
            console="off",
            init_timeout=START_SECONDS,
            finish_timeout=UPLOAD_SECONDS,
            save_code=False,
            silent=True,
            x_disable_meta=any(is_secret(word.partition("=")[0]) for word in sys.argv),
        )
        super().__init__(
            project,
            id=run_id(training.directory),
            resume="allow",
            group=config.experiment or os.environ.get("WANDB_RUN_GROUP") or experiment_of(config),
            name=training.name,
            tags=sorted({tag.strip() for tag in tags} - {""}),
            dir=str(training.directory.path),
            mode=os.environ.get("WANDB_MODE", "online"),
            settings=settings,
        )
        self._training = training
        if self.init_kwargs["mode"] == "online" and not wandb.api.api_key:
            self._go_offline("no API key: wandb login stores one")

    def start(self) -> None:
        """Start the run, offline if the server refuses (a wrong key) or does not answer."""
        import wandb

        try:
            super().start()
        except Exception as error:
            if self.init_kwargs["mode"] != "online":
                raise
            wandb.teardown()  # wandb's service still holds the run's id
            self._go_offline(str(error).partition("\n")[0])
            super().start()

        # Every curve is drawn over optimizer steps.
        for axis in ("samples", "epoch"):
            self.run.define_metric(axis, hidden=True)
        for group in ("train/*", "eval/*"):
            self.run.define_metric(group, step_metric="step")
        config = self._training.config
        if config.best_metric is not None:
            summary = f"{config.best_mode},last"
            self.run.define_metric(config.best_metric, step_metric="step", summary=summary)

    def add_summary(self, training: Run, summary: Mapping[str, Any]) -> None:
        """Add the end of a run, and the exported model if ``track_model`` asks for it."""
        import wandb

        seconds = {f"summary/seconds/{name}": lasted for name, lasted in summary["seconds"].items()}
        peak = max(summary["peak_memory_bytes"])
        self.run.summary.update({"summary/peak_memory_bytes": peak, **seconds})
        if training.config.track_model:
            metadata = {"step": training.step}
            model = wandb.Artifact(f"model-{self.run.id}", type="model", metadata=metadata)
            model.add_dir(str(training.directory.path / "model"))
            self.run.log_artifact(model)

    def finish_as_failed(self) -> None:
        """End the run of a job that fails: what was logged is kept, and W&B shows it as failed."""
        self.run.finish(exit_code=1)

    def _go_offline(self, reason: str) -> None:
        self.init_kwargs["mode"] = "offline"
        command = f"wandb sync {self._training.directory.path}/wandb/*run-*"
        self._training.say(f"wandb: offline ({reason}); upload later with: {command}")


def run_id(directory: RunDirectory) -> str:
    """Return the run id on W&B: the id in the run's folder, else WANDB_RUN_ID, else a new id.

    Raises:
        ConfigError: WANDB_RUN_ID names another run than the folder continues.
    """
    path = directory.path / FILE
    wanted = os.environ.get("WANDB_RUN_ID")
    if not path.exists():
        directory.write(FILE, json.dumps({"wandb": wanted or secrets.token_hex(4)}) + "\n")

    kept = json.loads(path.read_text(encoding="utf-8"))["wandb"]
    if wanted and wanted != kept:
        rule = f"{path} continues the run {kept!r}; unset the variable, or give another output_dir"
        origin = Origin("environment", key="WANDB_RUN_ID")
        raise ConfigError(Problem(origin=origin, value=wanted, rule=rule))
    return str(kept)
