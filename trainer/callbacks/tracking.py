"""Trackers (W&B, trackio, TensorBoard, ...) through Accelerate, from the main process.

A tracker gets ``train/...`` and ``eval/...`` over optimizer steps, and the resolved plan as its
configuration. Settings whose names look like those of secrets are left out. What is special to W&B
is in ``wandb_run.py``, servers that fail in ``tracker_faults.py``.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

from ..config.fingerprint import fingerprint
from ..config.naming import file_name_part
from ..errors import ConfigError, Origin, Problem
from ..hooks import Callback, StepInfo, Unfinished
from ..run import Run
from ..text import did_you_mean, is_secret
from .tracker_faults import TolerantTracker
from .wandb_run import WandbRun, check_run_id
from .wandb_settings import WandbSettings

_AXES = ("step", "epoch", "samples")
_PIP_NAMES = {"comet_ml": "comet-ml"}
_NAME_ARGUMENTS = {"clearml": "task_name", "swanlab": "experiment_name"}
_WITHOUT_NAME = ("comet_ml", "dvclive")
# Facts of plan.json that belong to the folder or the machine, not to the training.
_LEFT_OUT = ("origins", "files", "notices", "output_dir")


class Tracking(Callback):
    """Logs to Accelerate's trackers. They start at the first logged step and end after the export.

    Args:
        names: of trackers, as Accelerate calls them.
        origin: of ``trackers``, for messages.

    Raises:
        ConfigError: there is no such tracker, or its package is not installed.
    """

    def __init__(self, names: Sequence[str], *, origin: Origin) -> None:
        check_names(names, origin)
        self.names = list(names)
        self.has_started = False
        self.wandb_settings: WandbSettings | None = None  # on the main process
        self.wandb_run: WandbRun | None = None  # once started, if W&B is among the trackers

    def on_data(self, run: Unfinished) -> None:
        """Look at W&B's variables, once the folder is this run's and before anything is trained."""
        if run.config.run_name is not None:
            for name in self.names:
                if name in _WITHOUT_NAME:
                    run.note(f"run_name: Accelerate's tracker {name} takes none")
        if "wandb" in self.names and not run.finished:
            run.agreement.run_on_main(lambda: self._read_wandb_variables(run))

    def _read_wandb_variables(self, run: Unfinished) -> None:
        self.wandb_settings = WandbSettings.of(run.config, os.environ)
        check_run_id(run.directory, os.environ)
        run.note(*self.wandb_settings.notices)

    def on_step(self, run: Run, info: StepInfo) -> None:
        has_values = info.metrics is not None or info.evaluation is not None
        if not run.is_main or not has_values:
            return

        # The other ranks wait in the next step for as long as a client tries to reach its server.
        with run.meter.paused("trackers"):
            if not self.has_started:
                self._start(run)
                self.has_started = True
            run.accelerator.log(tracked_values(info), step=info.step)

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        if not self.has_started:
            return

        if self.wandb_run is not None:
            self.wandb_run.summary = summary
        # Not by end_training, which destroys the process group as well.
        for tracker in run.accelerator.trackers:
            tracker.finish()

    def _start(self, run: Run) -> None:
        """Start all trackers, by Accelerate, and give them the configuration of the run."""
        accelerator = run.accelerator
        accelerator.log_with = [self._new_tracker(name, run) for name in self.names]
        accelerator.init_trackers(run.config.project, config=configuration(run))

    def _new_tracker(self, name: str, run: Run) -> TolerantTracker:
        if name == "wandb":
            assert self.wandb_settings is not None, "on_data comes before the first step"
            self.wandb_run = WandbRun(run, self.wandb_settings)
            return TolerantTracker(
                self.wandb_run, run.say, on_failure=self.wandb_run.finish_as_failed
            )

        tracker_class = LOGGER_TYPE_TO_CLASS[name]
        title, settings = named(name, run)
        if tracker_class.requires_logging_directory:
            settings["logging_dir"] = str(run.directory.path / "tracking")
        tracker = tracker_class(title, **settings)
        return TolerantTracker(tracker, run.say, on_failure=tracker.finish)


def named(tracker: str, run: Run) -> tuple[str, dict[str, Any]]:
    """Return how a tracker's class is told project and run: its first argument, and others."""
    project = run.config.project
    if tracker == "trackio":
        return project, {"name": run.name, "embed": False}
    if tracker == "mlflow":
        return project, {"run_name": run.name}

    if run.config.run_name is None:  # the others were not given one before there was the key
        return project, {}
    if tracker == "tensorboard":
        return file_name_part(run.name), {}  # its runs are called as their folders
    if tracker == "aim":
        return run.name, {"experiment": project}
    if tracker in _NAME_ARGUMENTS:
        return project, {_NAME_ARGUMENTS[tracker]: run.name}
    return project, {}


def check_names(names: Sequence[str], origin: Origin) -> None:
    """Check that Accelerate has trackers of these names, and that their packages are installed.

    Raises:
        ConfigError: with a line for each name that is wrong.
    """
    known = list(LOGGER_TYPE_TO_CLASS)
    installed = [str(name) for name in get_available_trackers()]

    problems = []
    for name in names:
        if name not in known:
            rule = f"no tracker of Accelerate; {did_you_mean(name, known)}"
            problems.append(Problem(origin=origin, value=name, rule=rule))
        elif name not in installed:
            package = _PIP_NAMES.get(name, name)
            rule = f"its package is not installed: pip install {package}"
            problems.append(Problem(origin=origin, value=name, rule=rule))
    if problems:
        raise ConfigError(problems)


def tracked_values(info: StepInfo) -> dict[str, float]:
    """Return the numbers of a step: the axes, ``train/...`` and ``eval/...``."""
    values: dict[str, float] = {"step": info.step, "epoch": info.epoch, "samples": info.samples}
    if info.evaluation is not None:
        values.update(info.evaluation)
    if info.metrics is not None:
        for name, value in info.metrics.items():
            if name not in _AXES:
                values[f"train/{name}"] = value
    return values


def configuration(run: Run) -> dict[str, Any]:
    """Return what a tracker keeps beside the curves: settings, plan.json and the git commit."""
    values = dict(fingerprint(vars(run.config)))
    for name, value in run.facts.items():
        if name not in _LEFT_OUT:
            values[name] = value
    values["git_commit"] = _commit()
    return without_secrets(values)


def without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the values whose key looks like that of a secret, also in nested mappings."""
    kept = {}
    for key, value in values.items():
        if is_secret(str(key)):
            continue
        kept[key] = without_secrets(value) if isinstance(value, Mapping) else value
    return kept


def _commit() -> str | None:
    """Return the commit of the working folder, with ``+`` where files were changed.

    None outside of a repository, or without git.
    """
    words = ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
