"""Trackers (W&B, trackio, TensorBoard, ...) through Accelerate, from the main process;
``wandb_run.py`` has W&B's own.

A tracker sees ``train/...`` and ``eval/...`` over optimizer steps, and the resolved plan as its
configuration. Values of settings that look like secrets are left out.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ..config.fingerprint import fingerprint
from ..distributed.exit import when_failing
from ..errors import ConfigError, Origin, Problem, TrainerError
from ..faults.waits import waits_outside
from ..hooks import Callback, StepInfo
from ..run import Run
from ..text import did_you_mean, hidden_words, is_secret
from .tracker_faults import Patience

_AXES = ("step", "epoch", "samples")


class Tracking(Callback):
    """Logs to Accelerate's trackers. They start at the first logged step and end after the export.

    Args:
        names: of trackers, as Accelerate calls them.
        origin: of ``trackers``, for messages.

    Raises:
        ConfigError: there is no such tracker, or its package is not installed.
    """

    def __init__(self, names: Sequence[str], *, origin: Origin) -> None:
        self.names = list(names)
        self.patience: Patience | None = None  # from the start on
        self.undo: list[Callable[[], None]] = []
        check(self.names, origin)

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        if not trainer.is_main or (info.metrics is None and info.evaluation is None):
            return
        values = {
            "step": info.step,
            "epoch": info.epoch,
            "samples": info.samples,
            **(info.evaluation or {}),
        }
        values |= {
            f"train/{name}": value
            for name, value in (info.metrics or {}).items()
            if name not in _AXES
        }
        with trainer.meter.paused("trackers"), waits_outside("a tracker"):
            if self.patience is None:
                self._start(trainer)
                self.patience = Patience(trainer.say)
            for tracker in trainer.accelerator.trackers:
                self.patience.call(
                    tracker, partial(tracker.log, values, step=info.step), f"step {info.step}"
                )

    def on_end(self, trainer: Run, summary: Mapping[str, Any]) -> None:
        if self.patience is None:
            return
        for undo in self.undo:
            undo()
        for tracker in trainer.accelerator.trackers:
            last = tracker.finish
            if tracker.name == "wandb":
                from . import wandb_run

                last = partial(wandb_run.finish, trainer, tracker.tracker, summary)
            Patience(trainer.say).call(tracker, last, "the end of the run", again=False)

    def _start(self, trainer: Run) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        accelerator, plan = trainer.accelerator, trainer.plan
        title = f"{plan.strategy}-{plan.world_size}"
        run = f"{experiment_of(trainer)}-{title}"
        settings: dict[str, dict[str, Any]] = {
            "trackio": {"name": run, "embed": False},
            "mlflow": {"run_name": run},
        }
        if "wandb" in self.names:
            from . import wandb_run

            settings["wandb"] = wandb_run.settings(
                trainer,
                title=title,
                experiment=experiment_of(trainer),
                config=configuration(trainer),
                hide_command=hidden_words(sys.argv) != sys.argv,
            )
        folder = trainer.directory.path / "tracking"
        for name in self.names:
            kind = LOGGER_TYPE_TO_CLASS[name]
            given = [
                trainer.config.project,
                *([str(folder)] if kind.requires_logging_directory else []),
            ]
            tracker = kind(*given, **settings.get(name, {}))
            try:
                tracker.start()
            except Exception as error:
                reason = str(error).partition("\n")[0]
                if name != "wandb" or settings[name]["mode"] != "online":
                    raise TrainerError(f"trackers: {name} does not start: {reason}") from error
                # Its server answers and then refuses (a wrong key), or stops answering: training
                # goes on.
                wandb_run.give_up(trainer, reason)
                tracker = kind(*given, **{**settings[name], "mode": "offline"})
                tracker.start()
            # TensorBoard takes plain values only, and W&B has its own from the start.
            if name != "wandb":
                plain = configuration(trainer)
                tracker.store_init_configuration(
                    {k: v if _is_plain(v) else str(v) for k, v in plain.items()}
                )
            accelerator.trackers.append(tracker)
            last = (
                partial(tracker.tracker.finish, exit_code=1) if name == "wandb" else tracker.finish
            )
            self.undo.append(when_failing(last))
        if "wandb" in self.names:
            wandb_run.describe(accelerator.get_tracker("wandb", unwrap=True), trainer)


def check(names: Sequence[str], origin: Origin) -> None:
    """Raise ``ConfigError`` for a name that is no tracker of Accelerate, or whose package is not
    installed.
    """
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS, get_available_trackers

    known, installed = list(LOGGER_TYPE_TO_CLASS), list(map(str, get_available_trackers()))
    problems = []
    for name in names:
        rule = ""
        if name not in known:
            rule = f"no tracker of Accelerate; {did_you_mean(name, known)}"
        elif name not in installed:
            rule = "its package is not installed: pip install " + {"comet_ml": "comet-ml"}.get(
                name, name
            )
        if rule:
            problems.append(Problem(origin=origin, value=name, rule=rule))
    if problems:
        raise ConfigError(problems)


def experiment_of(trainer: Run) -> str:
    """Return the name that runs which are compared have in common."""
    return trainer.config.experiment or trainer.config.task.rpartition(":")[2]


def configuration(trainer: Run) -> dict[str, Any]:
    """Return what a tracker keeps beside the curves: plan.json, the settings that decide the
    numbers, the commit.
    """
    left_out = ("origins", "files", "notices", "output_dir")
    facts = {key: value for key, value in trainer.facts.items() if key not in left_out}
    return without_secrets(
        {
            **fingerprint(vars(trainer.config)),
            **facts,
            "git_commit": _commit(),
        }
    )


def without_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the values whose key looks like that of a secret."""
    return {
        key: without_secrets(value) if isinstance(value, Mapping) else value
        for key, value in values.items()
        if not is_secret(str(key))
    }


def _commit() -> str | None:
    """Return the commit of the working folder, with ``+`` where it was changed; None outside of a
    repository.
    """
    try:
        words = ["git", "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None


def _is_plain(value: object) -> bool:
    return isinstance(value, bool | str | float | int) or value is None
