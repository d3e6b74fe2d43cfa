"""The trainer: the loop is a generator, and ``fit`` drains the loop.

``steps`` does the arithmetic of a step. Everything else is a hook (``row.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from signal import Signals
from typing import Any

from .building.build import build
from .config.train_config import TrainConfig
from .data.batches import Window
from .distributed.exit import Stopped, meet_at_the_end
from .distributed.heartbeat import watched
from .distributed.same import same_on_all_ranks
from .errors import DataError, Origin
from .hooks import Callback, Hooks, StepInfo
from .launching import Launched
from .losses import StepLosses, explained, refuse_independent, without_backward
from .reporting.meter import summary_text
from .row import row_of
from .strategies.base import StepResult
from .strategies.buffers import restored_buffers
from .task import Task, computed_tokens


class Trainer:
    """Trains a task as a config says, under the strategy that was launched.

    Args:
        task: what to learn.
        config: how long, with which batch, rate and so on.
        launched: the result of ``launch``. By default launched here, without a launch file.
        callbacks: called after the built-in hooks. Only saving comes after them.
        origins: of the config's values, by key, for messages.

    Attributes:
        run: the live parts and the position, for hooks.

    Raises:
        ConfigError, LaunchError, DataError: before the first step, on every rank.
    """

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        launched: Launched | None = None,
        *,
        callbacks: Sequence[Callback] = (),
        origins: Mapping[str, Origin] | None = None,
    ) -> None:
        row = row_of(
            config,
            callbacks,
            origins or {},
            divided=not launched or bool(launched.strategy.held),
        )
        self.hooks = Hooks(row)
        self.run = build(task, config, launched, callbacks=row, origins=origins)
        self._first_step = self.run.step

    def fit(self) -> dict[str, float]:
        """Train to the end, export the model, and return the last evaluation. Collective.

        Raises:
            Stopped: a signal asked to stop. The model was exported.
        """
        run = self.run
        if run.finished:
            return run.last_evaluation

        watch = watched(
            lambda: (run.step, *run.meter.position),  # called by another thread
            advice=run.how_to_resume,
        )
        with run.agreement.listening(), watch:
            with explained(run.strategy.known_errors):
                for _ in self.steps():
                    pass
            self._finish()
        run.directory.release()

        if run.stop_signal:
            raise Stopped(run.stop_signal, step=run.step, total_steps=run.total_steps)
        return run.last_evaluation

    def steps(self) -> Iterator[StepInfo]:
        """Train, an optimizer step an iteration. Collective: iterate on every rank, in lockstep."""
        run, strategy = self.run, self.run.strategy
        run.train_mode()
        self.hooks.call("on_start", run)
        if run.stopping:  # a signal came before the first step
            return

        for window in run.meter.waiting("data", run.windows()):
            total_weights = self._begin_total_weights(window)
            self.hooks.call("on_window", run, window)

            # Forward and backward: each loss has a share of the mean over the global batch.
            losses = StepLosses(total_weights, strategy)
            for micro in window.micros:
                # A padding batch takes part in exchanges, and leaves BatchNorm's buffers alone.
                padding = nullcontext() if micro.weight else restored_buffers(run.model)
                is_last = micro is window.micros[-1]
                with padding, strategy.micro_step(boundary=is_last):  # averages at the last
                    batch = strategy.to_device(micro.batch)
                    is_first = run.step == self._first_step
                    with without_backward() if is_first else nullcontext():
                        result = run.task.training_step(run.model, batch)
                    loss = losses.add(result, micro.weights)
                    if is_first:
                        refuse_independent(loss)
                    strategy.backward(loss)

            # Clip, step, zero. Then schedule, moving average and the position in the data.
            self.hooks.call("before_update", run)
            update = strategy.finish_step(run.config.on_nan)
            run.advance(window, skipped=update.skipped)

            # Hooks: stopping, log, evaluation, checks, yours, checkpoints.
            info = self._info(window, losses, update)
            self.hooks.on_step(run, info)
            yield info
            if info.is_last:
                return

    def evaluate(self) -> dict[str, float]:
        """Measure on all evaluation sets. Every world size gives the same values. Collective."""
        return self.run.evaluate()

    def close(self) -> None:
        """Wait for the save in flight, and release the engine. Your own script calls it last."""
        self.run.close()

    # -- parts of a step --------------------------------------------------------------------------

    def _begin_total_weights(self, window: Window) -> Callable[[], Mapping[str, float]]:
        """Begin to sum weights and tokens over ranks, during the first forward pass. Collective."""
        run = self.run
        if run.train_data.weight_is_planned:
            return lambda: {"": float(window.samples * run.plan.context_parallel)}
        names = window.micros[0].weights
        if run.step == self._first_step:  # other names on a rank would never be answered
            parts = {"the result of Task.weight": ", ".join(names)}
            difference = same_on_all_ranks(parts, run.agreement.gather)
            if difference:
                raise DataError(difference)
        counted = [micro.batch for micro in window.micros if micro.weight]
        weights = zip(*(micro.weights.values() for micro in window.micros), strict=True)
        of_rank = [computed_tokens(run.task, counted), *map(sum, weights)]
        sums_of_ranks = run.agreement.begin_sums(of_rank)

        @cache
        def total_weights() -> Mapping[str, float]:
            tokens, *totals = sums_of_ranks()
            if sum(totals) <= 0:
                raise DataError(
                    f"step {run.step + 1}: no item of the global batch has a weight. "
                    "Check Task.weight"
                )
            if run.task.counts_tokens:
                # Each process that shares rows has counted their tokens.
                shared = run.plan.context_parallel
                run.meter.count(tokens / shared, trained=totals[0] / shared)
            return dict(zip(names, totals, strict=True))

        return total_weights

    def _info(self, window: Window, losses: StepLosses, update: StepResult) -> StepInfo:
        run = self.run
        return StepInfo(
            step=run.step,
            epoch=run.train_data.epochs_at(run.samples),
            samples=run.samples,
            began=window.now.samples,
            loss=losses.total,
            grad_norm=update.grad_norm,
            update=update,
            shares=losses.shares,
            reported=losses.reported,
        )

    # -- the end ----------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Export the model, write summary.json, and let the hooks finish. Collective."""
        run = self.run
        model = run.directory.path / "model"
        run.export(model)
        summary = self._summary()
        run.meter.memory.enter("ending")
        run.directory.write_json("summary.json", summary)
        run.say(summary_text(summary, model))
        self.hooks.call("on_end", run, summary)
        meet_at_the_end(run.agreement.close)

    def _summary(self) -> dict[str, Any]:
        """Return the content of summary.json. Collective: call on every rank."""
        run = self.run
        stopped_by = Signals(run.stop_signal).name if run.stop_signal else run.position.stop_reason
        if run.last_step <= run.step < run.total_steps:
            stopped_by = stopped_by or f"stop_at {run.config.stop_at}"
        spent = run.meter.summary(
            run.agreement.gather, run.operations, run.plan.world_size, run.plan.precision["compute"]
        )
        return {
            "steps": run.step,
            "total_steps": run.total_steps,
            "samples": run.samples,
            "stopped_by": stopped_by or None,
            **spent,
            "evaluation": run.last_evaluation,
            **self.hooks.summary(),
            "machine": run.facts["machine"],
        }
