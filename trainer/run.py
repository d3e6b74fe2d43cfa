"""A training without its loop: its live parts, its position, and what is done between steps.

``build`` makes a ``Run``; ``Trainer`` loops over one. A loop of your own does the same with plain
Accelerate around it (``examples/own_loop.py``), and has the exact data order and the checkpoints
under every strategy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch
from torch import Tensor, nn

from .building.trial import unchanged
from .checkpoint import Parts, Saver, Start, StatefulCallback, restore, store
from .checkpoint.export import ModelFile, export_model
from .checkpoint.start import how_to_resume, restart_notices
from .config.naming import of_literal
from .data.now import Now, at, current, set_now
from .errors import CheckpointError, Origin, TrainerError
from .measuring import Measurement, chosen_sets, newest_values
from .reporting.banner import facts
from .strategies.whole_parameters import whole_parameters
from .task import Task
from .text import hidden

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim.lr_scheduler import LRScheduler

    from .building.evaluation import MeasuredSet
    from .checkpoint import OptimizerForm
    from .config.interval import Interval
    from .config.train_config import TrainConfig
    from .data.batches import Layout, TrainData, Window
    from .data.samples import Sampled
    from .distributed.agreement import Agreement
    from .optim.ema import Average
    from .plan import Plan
    from .reporting.directory import RunDirectory
    from .reporting.meter import Meter
    from .strategies import Shard, Strategy
    from .task import Data

# Counters that a checkpoint keeps beside the step, by their attributes of a run.
COUNTERS = (
    "samples",
    "skipped_steps",
    "skipped_in_a_row",
    "last_evaluation",
    "not_finite_at_start",
)


class RunHooks(Protocol):
    """The part of the hooks that a run itself calls."""

    def on_save(self, run: Run) -> None: ...


@dataclass(kw_only=True, eq=False)
class Run:
    """The live parts of a training, prepared under a strategy, and its position.

    ``build`` makes one. Every method is collective: call it on every rank.

    Attributes:
        task, config, origins: what it was made from; the origins of the config's values, by key.
        plan: what runs, resolved: strategy, world size, precision, batch, rate.
        accelerator: Accelerate's, verified to be what the plan says.
        strategy: what computes. A loop over several models calls forward and
            ``strategy.backward(loss)`` in ``with strategy.micro_step(boundary=is_last):`` for each
            micro-batch, then ``strategy.finish_step()``.
        agreement: decisions of all ranks, over a CPU group of its own.
        name: for people: ``run_name`` with the values of its placeholders.
        directory: the run's folder; its ``path`` is ``output_dir`` with those values, which is
            then in ``config.output_dir`` too.
        meter: the clocks of this rank.
        data, train_data: what ``Task.build_data`` returned, and the windows of its training set.
        schedule: of the learning rate; ``advance`` steps it.
        average: the moving average of the weights, if one is kept.
        callbacks: the hooks whose state belongs into checkpoints, in the order of their calls.
        optimizer_facts: what banner, plan.json and trackers report of the optimizer and schedule
            as they were built, beside the plan.
        step, samples: optimizer steps done, and samples consumed by all ranks.
        step_began: samples consumed before the last of these steps.
        rates: the learning rate of each parameter group in the last step.
        total_steps: the step at which training ends, and the schedule.
        stop_at: the config's, in optimizer steps, or None.
        steps_per_epoch: None for a stream, whose length is not known.
        evaluation_sets: the sets to measure on, by name; a single one has the name "". Iterating
            one yields this rank's ``(batch, examples)``, in the order of the data.
        eval_every, save_every: the config's intervals, or None; ``is_due_at(step)``.
        skipped_steps: steps that the fp16 scaler skipped, and those that ``on_nan: skip`` left out.
        stopping: whether the ranks have agreed that training ends with this step.
        stop_signal: the number of the signal that asked for it; 0 where code asked.
        last_evaluation: the ``eval/...`` numbers of each set when it was measured last.
        not_finite_at_start: buffers and frozen parameters that held values that are not finite
            before the first step (a mask of -inf), and so may in checkpoints.
        finished: whether the run in this folder has ended already: nothing is trained or written.
        is_main: whether this is the main process, which writes.
        facts: what plan.json holds.
        notices: what the banner says below its table.
    """

    task: Task
    config: TrainConfig
    plan: Plan
    accelerator: Accelerator
    strategy: Strategy
    hooks: RunHooks
    callbacks: Sequence[StatefulCallback]
    task_facts: Mapping[str, Any]
    origins: Mapping[str, Origin]

    is_main: bool = field(init=False)

    # Set by ``build``, in this order.
    agreement: Agreement = field(init=False)
    meter: Meter = field(init=False)
    machine: Mapping[str, Any] = field(init=False)
    name: str = field(init=False)
    directory: RunDirectory = field(init=False)
    layout: Layout = field(init=False)
    data: Data = field(init=False)
    train_data: TrainData = field(init=False)
    sampled: Sampled = field(init=False)
    evaluation_sets: dict[str, MeasuredSet] = field(init=False)
    steps_per_epoch: int | None = field(init=False)
    total_steps: int = field(init=False)
    stop_at: int | None = field(init=False)
    eval_every: Interval | None = field(init=False)
    save_every: Interval | None = field(init=False)
    model_file: ModelFile = field(init=False)
    parameters: int = field(init=False)
    trainable: int = field(init=False)  # elements of the trainable parameters
    operations: int = field(init=False)  # floating-point operations of a token with the parameters
    state_bytes: int = field(init=False)  # of this rank
    optimizer_form: OptimizerForm = field(init=False)
    optimizer_facts: dict[str, Any] = field(init=False)
    schedule: LRScheduler = field(init=False)
    average: Average = field(init=False)
    averaged: list[Shard] = field(init=False)
    saver: Saver = field(init=False)
    facts: dict[str, Any] = field(init=False)
    reads_weights_later: bool = False  # first values do not count: files have others
    base_weights: str | None = None  # a checksum of the weights that no checkpoint holds
    frozen_modes: Sequence[nn.Module] = ()  # modules that stay in evaluation mode
    notices: list[str] = field(default_factory=list)

    # The position.
    step: int = 0
    samples: int = 0
    step_began: int = 0
    rates: Sequence[Any] = ()
    skipped_steps: int = 0
    skipped_in_a_row: int = 0
    last_evaluation: dict[str, float] = field(default_factory=dict)
    not_finite_at_start: list[str] | None = None  # not known yet
    finished: bool = False
    stopping: bool = False
    stop_signal: int = 0
    stop_reason: str = ""  # what this rank said when it asked for a stop

    def __post_init__(self) -> None:
        # Asked for at each step; Accelerate's property costs 15 us.
        self.is_main = bool(self.accelerator.is_main_process)

    @property
    def model(self) -> nn.Module:
        """Return the prepared model: what computes."""
        return self.strategy.model

    @property
    def optimizer(self) -> Any:
        """Return the optimizer as ``accelerator.prepare`` gives it, for loops that step it."""
        return self.strategy.prepared_optimizer

    @property
    def last_step(self) -> int:
        """Return the step with which this run ends: ``total_steps``, or before it ``stop_at``."""
        if self.stop_at is None:
            return self.total_steps
        return min(self.stop_at, self.total_steps)

    # -- steps ------------------------------------------------------------------------------------

    def windows(self) -> Iterator[Window]:
        """Yield the optimizer steps that are left: this rank's micro-batches, on the CPU.

        They come in the global order, which depends on the seed alone. ``trainer.now()`` is the
        moment of the window that was yielded last, until there is none.
        """
        read_over = self.train_data.samples_to_read_over()
        if read_over:
            self.say(
                "the stream keeps no state, or shuffles in a buffer: "
                f"{read_over:,} samples are read over first"
            )
        steps = self.last_step - self.step
        return _noted(self.train_data.windows(self.samples, steps, done=self.step))

    def train_mode(self) -> None:
        """Put the model into training mode, except for what build_model left in evaluation mode."""
        self.model.train()
        for module in self.frozen_modes:
            module.training = False

    def advance(self, window: Window, *, skipped: bool = False) -> None:
        """Count an optimizer step with this window: move schedule, average and a save in flight on.

        Args:
            skipped: the fp16 scaler left the step out; then neither schedule nor average moves.
                (After a step that ``on_nan: skip`` left out they do.)

        Raises:
            CheckpointError: a save failed on some rank, and ``on_save_error`` is ``stop``.
        """
        self.rates = self.schedule.get_last_lr()
        self.step += 1
        self.step_began = self.samples
        self.samples = window.end

        if skipped:
            self.skipped_steps += 1
            self.skipped_in_a_row += 1
        else:
            self.skipped_in_a_row = 0
            self.schedule.step()
            self.average.update()

        # The last step waits for the save anyway, and is to leave its model whatever the save does.
        if self.step < self.last_step:
            self.saver.poll()

    def whole_parameters(self, *names: str) -> AbstractContextManager[nn.Module]:
        """Surround code that reads or changes parameters, which strategies keep in parts.

        ``with run.whole_parameters("teacher") as model:`` gives the model as ``build_model`` built
        it, with the named modules' or parameters' values whole and in float32 on every rank (all of
        them without a name). What the block changes, in the same way on all ranks, is kept.
        Elsewhere a change in place is refused where it would be lost.
        """
        return whole_parameters(self.strategy, names)

    # -- evaluation -------------------------------------------------------------------------------

    def evaluate(self, names: Collection[str] | None = None) -> dict[str, float]:
        """Measure on whole evaluation sets; every world size gives the same numbers.

        A signal ends it between two batches: then it returns nothing, and ``stopping`` is set.

        Args:
            names: of the sets; by default all.

        Returns:
            The values of these sets: ``eval/loss``, or ``eval/clean/loss`` of a set with a name.

        Raises:
            DataError: there is no such set.
        """
        chosen = chosen_sets(self.evaluation_sets, names)
        measured: dict[str, dict[str, float]] = {}
        with self.evaluating():
            for evaluation_set in chosen:
                of_set = self._measure(evaluation_set)
                if of_set is None:
                    return {}
                measured[evaluation_set.name] = of_set

        self.last_evaluation = newest_values(self.evaluation_sets, measured, self.last_evaluation)
        values: dict[str, float] = {}
        for of_set in measured.values():
            values |= of_set
        return values

    @contextlib.contextmanager
    def evaluating(self, evaluation_set: MeasuredSet | None = None) -> Iterator[None]:
        """Surround code that computes with the model as an evaluation does.

        The model is in evaluation mode, has the same buffers on every rank and its moving average,
        if one is kept, and records no gradients.

        Args:
            evaluation_set: of ``run.evaluation_sets``, if its batches are computed:
                ``trainer.now()`` tells of it.
        """
        moment = current() if evaluation_set is None else self._moment_of(evaluation_set)
        self.strategy.sync_buffers()
        self.model.eval()
        with (
            self.meter.paused("evaluation"),
            self.average.applied(),
            at(moment),
            torch.no_grad(),
        ):
            yield
        self.train_mode()
        self.strategy.settle()

    def try_evaluation(self) -> dict[str, float]:
        """Evaluate the first batch of each set as ``evaluate`` would, and change nothing.

        Random numbers, buffers, modes of modules and positions of streams are afterwards as they
        were. The values mean little; which names they have, and that they can be computed, does.
        """
        values: dict[str, float] = {}
        trial = unchanged(self.model, compiled=self.plan.compile)
        with self.meter.paused("evaluation"), trial, torch.no_grad():
            self.model.eval()
            for evaluation_set in self.evaluation_sets.values():
                with self._measuring(evaluation_set) as measurement:
                    measurement.add(*evaluation_set.batches.first())
                    values |= measurement.values()
        self.strategy.settle()
        return values

    def close_evaluation(self) -> None:
        """End the loading processes of all evaluation sets."""
        for evaluation_set in self.evaluation_sets.values():
            evaluation_set.batches.close()

    def _measure(self, evaluation_set: MeasuredSet) -> dict[str, float] | None:
        """Return the values of a whole set; None where a signal ended it."""
        with self._measuring(evaluation_set) as measurement:
            for batch, examples in evaluation_set:
                measurement.add(batch, examples)
                if self._is_ended_by_signal():
                    return None
            return measurement.values()

    @contextlib.contextmanager
    def _measuring(self, evaluation_set: MeasuredSet) -> Iterator[Measurement]:
        """Surround the evaluation of a set, of which ``trainer.now()`` tells."""
        with at(self._moment_of(evaluation_set)):
            yield Measurement(self.task, self.strategy, self.agreement, evaluation_set)

    def _moment_of(self, evaluation_set: MeasuredSet) -> Now:
        """Return what ``trainer.now()`` tells while a set is measured."""
        return Now(
            step=self.step,
            epoch=self.train_data.epochs_at(self.samples),
            samples=self.samples,
            total_steps=self.total_steps,
            evaluation_set=evaluation_set.name,
            seed=self.config.seed,
        )

    def _is_ended_by_signal(self) -> bool:
        """Return whether a signal has come during the evaluation. Collective."""
        if self.stop_signal:  # it came before, and this evaluation is wanted all the same
            return False
        self.stop_signal = self.agreement.poll_evaluation()
        if not self.stop_signal:
            return False
        self.stopping = True
        return True

    # -- checkpoints and exports ------------------------------------------------------------------

    def parts(self) -> Parts:
        """Return the record of what a checkpoint of this step is made of."""
        settings = {
            **vars(self.config),
            **self.plan.as_dict(),
            **self.task_facts,
            "train_samples": self.train_data.size,
            "total_steps": self.total_steps,
        }
        if self.base_weights is not None:
            settings["base_weights"] = self.base_weights

        counters = {name: getattr(self, name) for name in COUNTERS}
        counters["spent"] = self.meter.until_now()
        averages: list[tuple[Shard, Tensor]] | None = None
        if self.config.ema_decay is not None:
            averages = list(zip(self.averaged, self.average.average, strict=True))

        return Parts(
            step=self.step,
            counters=counters,
            strategy=self.strategy,
            optimizer_form=self.optimizer_form,
            averages=averages,
            schedule=self.schedule,
            data=self.train_data,
            sampled=self.sampled,
            task=self.task,
            callbacks=self.callbacks,
            model_file=self.model_file,
            settings=hidden(settings),
            config=hidden(asdict(self.config)),
            plan=self.plan.as_dict(),
            run=facts(
                self.plan,
                **self.optimizer_facts,
                run_name=self.name,
                machine=self.machine,
                step=self.step,
                **counters,
            ),
        )

    def load(self, start: Start) -> None:
        """Continue from the checkpoint that ``start`` names, or begin with the config's weights.

        Raises:
            ConfigError: the configuration changes the numbers of the run, and that is not allowed.
            CheckpointError: the checkpoint holds another model, or what no run has saved.
        """
        for damaged in start.passed_over:
            self.note(f"passed over {damaged.path.name}: {damaged.problem}")

        if start.found is not None:
            counters, changes = restore.load(
                self.parts(), start.found, allow_change=self.config.allow_config_change
            )
            self.meter.before = counters.pop("spent", self.meter.before)
            for name, value in counters.items():
                setattr(self, name, value)
            self.note(f"resumed from {start.found.path}", *changes)
        elif start.continues:
            self.note(f"resume: auto: {self.directory.path} holds no checkpoint: starts at step 0")
        self.note(*restart_notices())

        if start.found is None and self.config.weights is not None:
            folder = Path(self.config.weights)
            self.note(*restore.load_weights(self.parts(), folder, self.agreement))

        if start.continues and start.found is not None:
            self.saver.last_step = self.step
        if start.continues and not self.finished:
            self.agreement.run_on_main(lambda: store.set_aside(start.passed_over))
            self.directory.cut_rows(self.step)

    def save(self) -> None:
        """Begin a checkpoint of this step, which is written while training continues.

        Call it between steps.

        Raises:
            CheckpointError: it cannot be written, and ``on_save_error`` is ``stop``.
        """
        with self.meter.paused("saving"):
            self.agreement.check_same(self.strategy.fingerprint)
            self.hooks.on_save(self)
            self.saver.save(self.parts())

    def export(
        self, directory: str | Path, *, beside: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Write the model (its moving average, if one is kept) as safetensors.

        Args:
            beside: the texts of further files in the folder, by name.
        """
        with self.meter.paused("saving"), self.average.applied():
            self.agreement.check_same(self.strategy.fingerprint)
            export_model(
                self.strategy,
                self.agreement,
                self.model_file,
                Path(directory),
                partial(self.parts().save_beside, more=beside),
            )

    # -- the job ----------------------------------------------------------------------------------

    def stop(self, reason: str = "", *, agreed: bool = False) -> None:
        """End training at a step boundary that all ranks agree on. Any rank may ask alone.

        Args:
            agreed: every rank asks now, because of numbers that are the same on all (an
                evaluation): the next step is the last.
        """
        if reason:
            self.stop_reason = reason
            self.say(f"stopping: {reason}")
        self.agreement.stop(agreed=agreed)

    def saves_at(self, step: int) -> bool:
        """Return whether a checkpoint is due at a step; the last one is saved in any case."""
        return self.save_every is not None and self.save_every.is_due_at(step)

    def fail(self, text: str) -> NoReturn:
        """End the run; a checkpoint that is being written is of before, and is waited for.

        Raises:
            TrainerError: always.
        """
        with self.meter.paused("saving"), contextlib.suppress(CheckpointError):
            self.saver.finish()
        raise TrainerError(
            f"{text}; lower lr, set max_grad_norm, look at the data, or set on_nan: skip"
        )

    def how_to_resume(self) -> str:
        """Return how a job that ends now is resumed. Any thread may call, also during ``build``."""
        return how_to_resume(Path(of_literal(self.config.output_dir)) / "checkpoints")

    def note(self, *texts: str) -> None:
        """Add lines to the banner and to plan.json. Before the first step."""
        self.notices.extend(texts)

    def say(self, text: str) -> None:
        """Print one line, and add it to log.txt, from the main process."""
        if self.is_main:
            print(text, flush=True)
            self.directory.line(text)

    def close(self) -> None:
        """Wait for the save in flight, and release the engine. Your own script calls it last."""
        self.saver.finish()
        self.agreement.close()
        self.strategy.close()
        self.directory.release()


def _noted(windows: Iterator[Window]) -> Iterator[Window]:
    """Yield the same windows; the moment of each is the one that ``trainer.now()`` returns."""
    moment: Now | None = None
    try:
        for window in windows:
            moment = window.now
            set_now(moment)
            yield window
    finally:
        if current() is moment:  # another run may have noted its own since
            set_now(None)
