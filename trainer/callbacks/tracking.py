"""Trackers (W&B, trackio, TensorBoard, ...) through Accelerate, from the main process.

A tracker that fails while the run trains is a notice, since metrics.jsonl has every value.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from accelerate.tracking import GeneralTracker, get_available_trackers

from ..config.fingerprint import fingerprint
from ..distributed.exit import when_failing
from ..errors import Origin, TrainerError
from ..hooks import Callback, StepInfo
from ..run import Run
from ..text import hidden, listed, told
from .wandb_run import WandbRun

# Facts of plan.json that belong to the folder or the machine, not to the training.
_LEFT_OUT = ("origins", "files", "notices", "output_dir")
# The argument that names the run, by tracker.
_NAMES = {
    "trackio": "name",
    "mlflow": "run_name",
    "clearml": "task_name",
    "swanlab": "experiment_name",
}


class Tracking(Callback):
    """Logs to Accelerate's trackers. They start at the first logged step, and end last."""

    def __init__(self, names: Sequence[str], *, origin: Origin) -> None:
        installed = [str(name) for name in get_available_trackers()]
        for name in names:
            if name not in installed:
                rule = "no tracker of Accelerate whose package is installed; there are "
                raise origin.error(rule + listed(installed, 12), name)
        self.names = names
        self._undo: list[Callable[[], None]] = []  # of the calls if the job fails
        self._live: list[GeneralTracker] = []

    def on_step(self, run: Run, info: StepInfo) -> None:
        if not run.is_main or not (info.metrics or info.evaluation):
            return

        # The other ranks wait in the next step for as long as a client tries to reach the server.
        with run.meter.paused("trackers"):
            if not self._undo:
                self._start(run)
            for tracker in list(self._live):
                try:
                    tracker.log(tracked_values(info), step=info.step)
                except Exception as error:  # each client has other errors
                    # A client may try for minutes to reach the server, at each step again.
                    self._live.remove(tracker)
                    run.say(
                        f"{tracker.name}: did not take step {info.step} ({told(error)}); "
                        "the tracker gets no more steps, metrics.jsonl has every value"
                    )

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        for undo in self._undo:
            undo()
        # Not by end_training, which destroys the process group as well.
        for tracker in run.accelerator.trackers:
            try:
                tracker.finish()
            except Exception as error:  # each client has other errors
                run.say(f"{tracker.name}: did not end its run: {told(error)}")

    def _start(self, run: Run) -> None:
        """Start all trackers, and give them the configuration of the run."""
        accelerator = run.accelerator
        accelerator.log_with = [WandbRun(run) if name == "wandb" else name for name in self.names]
        accelerator.project_configuration.logging_dir = str(run.directory.path / "tracking")
        named = {tracker: {key: run.name} for tracker, key in _NAMES.items()}
        try:
            accelerator.init_trackers(run.config.project, init_kwargs=named)
            for tracker in accelerator.trackers:
                tracker.store_init_configuration(configuration(run, tracker.name))
        except Exception as error:  # each client has other errors
            names = ", ".join(self.names)
            raise TrainerError(f"trackers: {names} does not start: {told(error)}") from error

        self._live = list(accelerator.trackers)
        ends = (getattr(tracker, "finish_as_failed", tracker.finish) for tracker in self._live)
        self._undo = list(map(when_failing, ends))


def tracked_values(info: StepInfo) -> dict[str, float]:
    """Return the numbers of a step: the axes, ``train/...`` and ``eval/...``."""
    found = {"step": info.step, "epoch": info.epoch, "samples": info.samples}
    training = {f"train/{k}": v for k, v in (info.metrics or {}).items() if k not in found}
    return found | (info.evaluation or {}) | training


def configuration(run: Run, tracker: str) -> dict[str, Any]:
    """Return the settings and plan.json for a tracker. Only W&B takes nested values."""
    values = hidden(fingerprint(vars(run.config)) | run.facts)
    is_nested = tracker == "wandb"
    return {
        key: value if is_nested or isinstance(value, str | float | int | None) else str(value)
        for key, value in values.items()
        if key not in _LEFT_OUT
    }
