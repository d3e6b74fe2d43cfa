"""The callbacks of every training: its files, its progress, its best model, its checkpoints."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping
from typing import Any

from tqdm import tqdm

from ..errors import CheckpointError, TrainerError
from ..state import TrainState
from ..text import clock, metrics_text, size
from .base import Callback, StepInfo
from .numbers import is_saved, refuse


class MetricsFile(Callback):
    """Rows of metrics.jsonl: logged steps, and evaluations."""

    def on_step(self, trainer: TrainState, info: StepInfo) -> None:
        if info.metrics is not None:
            trainer.directory.row(info.metrics)
        if info.evaluation is not None:
            trainer.directory.row(
                {"step": info.step, "epoch": info.epoch, "samples": info.samples, **info.evaluation}
            )


class Progress(Callback):
    """One bar for the job on a terminal; plain lines at the logging interval otherwise, and in
    log.txt.
    """

    def __init__(self) -> None:
        self.bar: tqdm[Any] | None = None

    def on_step(self, trainer: TrainState, info: StepInfo) -> None:
        if not trainer.is_main:
            return
        if self.bar is None and sys.stderr.isatty():
            self.bar = tqdm(total=trainer.total_steps, unit="step", dynamic_ncols=True)
        if self.bar is not None:
            self.bar.update(info.step - self.bar.n)
        if (m := info.metrics) is not None:
            speed, memory = _speed(m), size(m["peak_memory_bytes"])
            if self.bar is not None:
                self.bar.set_postfix_str(
                    f"loss {m['loss']:.4f} lr {m['lr']:.2e} {speed} mem {memory}"
                )
            text = (
                f"step {info.step}/{trainer.total_steps}  loss {m['loss']:.4f}  lr {m['lr']:.3e}  "
                f"norm {m['grad_norm']:.3f}  {speed}  eta {clock(m['eta_seconds'])}  mem {memory}"
            )
            self._tell(trainer, text, quiet=self.bar is not None)
        if info.evaluation is not None:
            shown = metrics_text(info.evaluation)
            if tokens := info.evaluation.get("eval/tokens"):
                shown += f"  {tokens / trainer.meter.lasted:.0f} tokens/s"
            self._tell(trainer, f"step {info.step}/{trainer.total_steps}  {shown}")
        if info.is_last and self.bar is not None:
            self.bar.close()

    def _tell(self, trainer: TrainState, text: str, *, quiet: bool = False) -> None:
        trainer.directory.line(text)
        if not quiet:
            (print if self.bar is None else self.bar.write)(text)
            sys.stdout.flush()


class Best(Callback):
    """Keeps the best model under ``best/``, and stops after ``patience`` evaluations without a
    better one.

    Args:
        metric: for example ``eval/loss``; the same number on every rank, so all decide alike.
        mode: ``min`` or ``max``.
        patience: evaluations; None never stops.
    """

    def __init__(self, metric: str, mode: str, patience: int | None) -> None:
        self.metric, self.sign, self.patience = metric, 1.0 if mode == "min" else -1.0, patience
        self.best, self.waited = math.inf, 0
        self.best_step: int | None = None
        self.loaded = False

    def on_step(self, trainer: TrainState, info: StepInfo) -> None:
        if self.loaded:
            self._hold_to_folder(trainer)
        if info.evaluation is None:
            return
        if self.metric not in info.evaluation:
            raise TrainerError(
                f"best_metric: {self.metric!r}: not among {', '.join(sorted(info.evaluation))}"
            )
        value = self.sign * info.evaluation[self.metric]
        if value < self.best:
            self.best, self.waited, self.best_step = value, 0, info.step
            trainer.export(trainer.directory.path / "best")
            return
        self.waited += 1
        if (
            self.waited == self.patience
        ):  # the next step is the last one, and may evaluate once more
            trainer.stop(f"{self.metric} did not improve in {self.waited} evaluations", agreed=True)

    def _hold_to_folder(self, trainer: TrainState) -> None:
        """Forget a best model that is not here: a run that branches off into a new folder brings
        its memory along.
        """
        self.loaded = False
        [there, *_] = trainer.agreement.gather((trainer.directory.path / "best").is_dir())
        if self.best_step is not None and not there:
            trainer.say(
                f"note: best/, of step {self.best_step}, is not in this output_dir: {self.metric} starts anew"
            )
            self.best, self.waited, self.best_step = math.inf, 0, None

    def pinned_steps(self) -> Collection[int]:
        return () if self.best_step is None else (self.best_step,)

    def summary(self) -> Mapping[str, Any]:
        if self.best_step is None:
            return {}
        return {
            "best": {"metric": self.metric, "value": self.sign * self.best, "step": self.best_step}
        }

    def state_dict(self) -> Mapping[str, Any]:
        return {
            "metric": self.metric,
            "best": self.best,
            "waited": self.waited,
            "best_step": self.best_step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        kept = state if isinstance(state, Mapping) else {}
        if kept.get("metric") != self.metric:  # the best of another metric says nothing
            return
        best, waited, step = kept.get("best"), kept.get("waited"), kept.get("best_step")
        if not (
            isinstance(best, int | float)
            and isinstance(waited, int)
            and isinstance(step, int | None)
        ):
            raise CheckpointError(f"{kept} is not what best_metric keeps")
        self.best, self.waited, self.best_step, self.loaded = best, waited, step, True


class SaveCheckpoints(Callback):
    """A checkpoint every ``save_every`` steps and at the end; the last callback, so that all others
    are in it.

    Raises:
        TrainerError: the loss is not finite; nothing is saved, and what is complete stays.
        CheckpointError: a save failed, and ``on_save_error`` is ``stop``. The model is exported all
            the same.
    """

    def on_step(self, trainer: TrainState, info: StepInfo) -> None:
        if not is_saved(trainer, info):
            return
        try:
            self._check_loss(trainer, info)
            trainer.save()
            if info.is_last:
                with trainer.meter.paused("saving"):
                    trainer.saver.finish()
        except CheckpointError as error:
            if info.is_last:  # there may be no checkpoint of these weights
                _export_after(trainer, error)
            raise

    def _check_loss(self, trainer: TrainState, info: StepInfo) -> None:
        """Refuse a loss without a value: the weights are worthless, or will be. One reduction, at
        saving steps only.

        The weights themselves are looked at by ``save``. A step that was left out has changed none.
        """
        if (
            trainer.config.keep_last == 0
            or trainer.config.on_nan == "skip"
            or trainer.skipped_in_a_row
        ):
            return
        loss = trainer.agreement.sum(float(info.loss))
        if not math.isfinite(loss):
            refuse(trainer, f"step {info.step}: the loss is {loss}")


def _export_after(trainer: TrainState, error: CheckpointError) -> None:
    """Write the model though a save failed; what stands in the way of that as well is told with the
    first error.
    """
    try:
        trainer.export(trainer.directory.path / "model")
    except CheckpointError as second:
        if str(second) not in str(error):
            raise CheckpointError(f"{error}; and {second}") from None


def _speed(metrics: Mapping[str, float]) -> str:
    unit = "tokens" if "tokens_per_second" in metrics else "samples"
    return f"{metrics[f'{unit}_per_second']:.0f} {unit}/s"
