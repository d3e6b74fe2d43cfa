"""A run on W&B: one for all attempts of a training, and never in the way of it.

Offline needs no key and no network. Online is tried only where there is a key, and given up where
the server does not answer within seconds; wandb itself would wait for 90 (wandb 0.31). The run's id
is kept in the run directory, so that a resumed training continues the same run.
"""

from __future__ import annotations

import json
import netrc
import os
import secrets
import sys
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from accelerate.tracking import WandBTracker

from ..errors import ConfigError, Origin, Problem
from ..reporting.directory import RunDirectory
from ..run import Run
from ..text import is_secret
from .tracker_faults import first_line
from .wandb_settings import WandbSettings

START_SECONDS = 10.0
UPLOAD_SECONDS = 60.0
FILE = "tracking.json"


class WandbRun(WandBTracker):  # type: ignore[misc]
    """Accelerate's tracker of W&B, which continues its run and goes offline without a server.

    Args:
        training: the run of this package, on its main process; `run` is the one on W&B.
        names: project, group, tags and others, of the config or of W&B's variables.

    Attributes:
        summary: of summary.json, set before ``finish``.
    """

    def __init__(self, training: Run, names: WandbSettings) -> None:
        import wandb

        self._training = training
        self.summary: Mapping[str, Any] | None = None

        mode, offline_reason = _choose_mode()
        if offline_reason:
            self._report_offline(offline_reason)

        # W&B's own description of the process would keep a secret of the command line.
        command_has_secret = any(is_secret(word.partition("=")[0]) for word in sys.argv)
        # The terminal's lines are in log.txt already, and may hold what should not leave this
        # machine: console="off".
        settings = wandb.Settings(
            console="off",
            init_timeout=START_SECONDS,
            finish_timeout=UPLOAD_SECONDS,
            save_code=False,
            silent=True,
            x_disable_meta=command_has_secret,
        )
        plan = training.plan
        tags = [plan.strategy, f"world-{plan.world_size}", plan.mixed_precision, plan.device]
        super().__init__(
            names.project,
            id=_run_id(training),
            resume="allow",
            group=names.group,
            job_type=names.job_type,
            name=training.name,
            tags=[*tags, *(tag for tag in names.tags if tag not in tags)],
            dir=str(training.directory.path),
            mode=mode,
            settings=settings,
        )

    def start(self) -> None:
        """Start the run; offline where the server refuses (a wrong key) or does not answer."""
        try:
            super().start()
        except Exception as error:
            if self.init_kwargs["mode"] != "online":
                raise
            self._go_offline(first_line(error))
            super().start()

        self._define_curves()

    def finish(self) -> None:
        """Add the summary, and the model where ``track_model`` asks for it, and end the run."""
        if self.summary is not None:
            self._add_summary(self.summary)
        if self._training.config.track_model:
            self._add_model()
        self.run.finish()

    def finish_as_failed(self) -> None:
        """End the run of a job that fails: what was logged is kept, and W&B shows it as failed."""
        self.run.finish(exit_code=1)

    def _go_offline(self, reason: str) -> None:
        import wandb

        wandb.teardown()  # wandb's service still holds the run's id
        self._report_offline(reason)
        self.init_kwargs["mode"] = "offline"

    def _report_offline(self, reason: str) -> None:
        folder = self._training.directory.path
        command = f"wandb sync {folder}/wandb/*run-*"
        self._training.say(f"wandb: offline ({reason}); upload later with: {command}")

    def _define_curves(self) -> None:
        """Draw every curve over optimizer steps; summarize a loss by its minimum and last value."""
        for axis in ("step", "samples", "epoch"):
            self.run.define_metric(axis, hidden=axis != "step")
        for group in ("train/*", "eval/*", "media/*"):
            self.run.define_metric(group, step_metric="step")
        sets = self._training.evaluation_sets.values()
        for name in ("train/loss", *(f"{measured.prefix}loss" for measured in sets)):
            self.run.define_metric(name, step_metric="step", summary="min,last")

        config = self._training.config
        if config.best_metric is not None:
            summary = f"{config.best_mode},last"
            self.run.define_metric(config.best_metric, step_metric="step", summary=summary)

    def _add_summary(self, summary: Mapping[str, Any]) -> None:
        values = {"summary/peak_memory_bytes": max(summary["peak_memory_bytes"])}
        for name, seconds in summary["seconds"].items():
            values[f"summary/seconds/{name}"] = seconds
        self.run.summary.update(values)

    def _add_model(self) -> None:
        import wandb

        metadata = {"step": self._training.step}
        model = wandb.Artifact(f"model-{self.run.id}", type="model", metadata=metadata)
        model.add_dir(str(self._training.directory.path / "model"))
        self.run.log_artifact(model)


def _run_id(training: Run) -> str:
    """Return the id of the run: that of the attempts before in this folder, or a new one.

    A new one is that of WANDB_RUN_ID, which an agent of W&B sets.
    """
    kept = _kept_id(training.directory)
    if kept is not None:
        return kept

    new_id = os.environ.get("WANDB_RUN_ID") or secrets.token_hex(4)
    training.directory.write(FILE, json.dumps({"wandb": new_id}) + "\n")
    return new_id


def _kept_id(directory: RunDirectory) -> str | None:
    """Return the id of the run that a folder's training has on W&B; None before its first one."""
    path = directory.path / FILE
    if not path.exists():
        return None
    return str(json.loads(path.read_text(encoding="utf-8"))["wandb"])


def check_run_id(directory: RunDirectory, environment: Mapping[str, str]) -> None:
    """Check that WANDB_RUN_ID names the run that the folder continues, if it has one.

    Raises:
        ConfigError: it names another one.
    """
    requested = environment.get("WANDB_RUN_ID")
    kept = _kept_id(directory)
    if not requested or kept is None or requested == kept:
        return

    rule = (
        f"{directory.path / FILE} continues the run {kept!r}; unset the variable, or give another "
        "output_dir for a run of its own"
    )
    origin = Origin("environment", key="WANDB_RUN_ID")
    raise ConfigError(Problem(origin=origin, value=requested, rule=rule))


def _choose_mode() -> tuple[str, str]:
    """Return the mode for ``wandb.init``, and why it is offline ("" where it is not).

    The mode is online where a key is found, unless the environment asks for another one.
    """
    import wandb

    requested = os.environ.get("WANDB_MODE", "online")
    if requested == "offline":
        return "offline", "WANDB_MODE says so"
    if requested != "online":
        return requested, ""

    settings = wandb.setup().settings
    if settings.api_key or _has_netrc_key(settings.base_url):
        return "online", ""
    return "offline", "no API key: wandb login stores one"


def _has_netrc_key(url: str) -> bool:
    """Return whether the user's netrc file has a login for the host of ``url``."""
    try:
        return netrc.netrc().authenticators(urlsplit(url).hostname or "") is not None
    except (OSError, netrc.NetrcParseError):
        return False
