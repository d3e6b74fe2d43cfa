"""A training without a loop: the live parts, the position, and the work between steps.

A loop of your own (``examples/own_loop.py``) has the exact data order and the checkpoints too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from torch import nn

from .checkpoint.exported import ModelFile, export_model
from .checkpoint.parts import Parts
from .checkpoint.saver import Saver
from .checkpoint.store import Start
from .data.now import Now, current, set_now
from .reporting.say import say_and_log
from .task import Task

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim.lr_scheduler import LRScheduler

    from .config.interval import Interval
    from .config.train_config import TrainConfig
    from .data.batches import TrainData, Window
    from .data.samples import Sampled
    from .distributed.agreement import Agreement
    from .evaluator import Evaluator, MeasuredSet
    from .optim.ema import Average
    from .position import Position
    from .reporting.directory import RunDirectory
    from .reporting.meter import Meter
    from .run_plan import Plan
    from .strategies import Strategy
    from .task import Data


class Setup(NamedTuple):
    """The parts that a run has once the ranks are connected.

    Args:
        task, config: the task and the settings that the run is made from.
        plan: the resolved settings: strategy, world size, precision, batch, rate.
        strategy: computes. A loop over several models calls forward and
            ``strategy.backward(loss)`` in ``with strategy.micro_step(boundary=is_last):`` for each
            micro-batch, then ``strategy.finish_step()``.
        agreement: decisions of all ranks, over a separate CPU group.
        meter: the clocks of this rank.
        is_main: whether this is the main process, which writes.
        task_facts: the task and the task's settings, as they were before the task was used.
        trains: whether the run trains, or is evaluated alone.
        notices: the lines below the table of the banner.
    """

    task: Task
    config: TrainConfig
    plan: Plan
    strategy: Strategy
    agreement: Agreement
    meter: Meter
    is_main: bool
    task_facts: Mapping[str, Any]
    trains: bool
    notices: list[str]

    def note(self, *texts: str) -> None:
        """Add lines to the banner and to plan.json, before these are written."""
        self.notices.extend(texts)


class Folder(NamedTuple):
    """The place of a run.

    Args:
        name: for people: ``run_name`` with the values of its placeholders.
        directory: the run's folder. ``directory.path`` is ``output_dir`` with the values of the
            placeholders, as in ``config.output_dir``.
        start: the checkpoint that the run begins with.
    """

    name: str
    directory: RunDirectory
    start: Start


class Length(NamedTuple):
    """The steps of a run.

    Args:
        total_steps: the step at which training ends, and the schedule.
        stop_at: the config's, in optimizer steps, or None.
        last_step: the step with which this run ends: ``total_steps``, or before it ``stop_at``.
        save_every: the config's interval, or None. ``is_due_at(step)``.
        finished: whether the run in this folder has ended already: nothing is trained or written.
    """

    total_steps: int
    stop_at: int | None
    last_step: int
    save_every: Interval | None
    finished: bool


class Sets(NamedTuple):
    """The data of a run.

    Args:
        data, train_data: the data that ``Task.build_data`` returned, and the windows of the
            training set.
        sampled: the content of some samples of the data sets.
        evaluation_sets: the sets to measure on, by name. A single set has the name "". Iterating a
            set yields this rank's ``(batch, examples)``, in the order of the data.
    """

    data: Data
    train_data: TrainData
    sampled: Sampled
    evaluation_sets: Mapping[str, MeasuredSet]


@dataclass(frozen=True, kw_only=True, eq=False)
class Read:
    """A run whose data is read, and whose model is not built yet.

    The names below are those of the parts.
    """

    setup: Setup
    folder: Folder
    length: Length
    sets: Sets

    @property
    def task(self) -> Task:
        return self.setup.task

    @property
    def config(self) -> TrainConfig:
        return self.setup.config

    @property
    def plan(self) -> Plan:
        return self.setup.plan

    @property
    def strategy(self) -> Strategy:
        return self.setup.strategy

    @property
    def agreement(self) -> Agreement:
        return self.setup.agreement

    @property
    def meter(self) -> Meter:
        return self.setup.meter

    @property
    def is_main(self) -> bool:
        return self.setup.is_main

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def directory(self) -> RunDirectory:
        return self.folder.directory

    @property
    def total_steps(self) -> int:
        return self.length.total_steps

    @property
    def last_step(self) -> int:
        return self.length.last_step

    @property
    def finished(self) -> bool:
        return self.length.finished

    @property
    def data(self) -> Data:
        return self.sets.data

    @property
    def train_data(self) -> TrainData:
        return self.sets.train_data

    @property
    def evaluation_sets(self) -> Mapping[str, MeasuredSet]:
        return self.sets.evaluation_sets

    @property
    def files(self) -> Path:
        """Return the folder for files of your callbacks, made when asked for.

        A resume keeps the folder, and ``--overwrite`` empties it.
        """
        folder = self.directory.path / "files"
        folder.mkdir(exist_ok=True)
        return folder

    def note(self, *texts: str) -> None:
        """Add lines to the banner and to plan.json, before these are written."""
        self.setup.note(*texts)

    def say(self, text: str) -> None:
        """Print a line, and add the line to log.txt, from the main process."""
        say_and_log(self.directory, text)


@dataclass(frozen=True, kw_only=True, eq=False)
class Built(Read):
    """A run whose model is built, and not prepared yet.

    Args:
        module: the model.
        fill: gives the prepared model its values, and returns notices. None if the model has them,
            or a checkpoint does.
        model_file: the tensors to export, with their dtypes.
        frozen_modes: modules that stay in evaluation mode.
        reads_weights_later: whether the first values do not count, because files have others.
    """

    module: nn.Module
    fill: Callable[[Parts], list[str]] | None
    model_file: ModelFile
    frozen_modes: Sequence[nn.Module]
    reads_weights_later: bool


@dataclass(frozen=True, kw_only=True, eq=False)
class Run(Read):
    """The live parts of a training, prepared under a strategy, and the position.

    Every method is collective: call it on every rank.

    Args:
        setup, folder, length, sets: the parts from before the model was built. ``run.plan`` is
            ``run.setup.plan``, and so on.
        position: the part that changes from step to step. ``Run`` has properties for the fields.
        schedule: of the learning rate, stepped by ``advance``.
        average: the moving average of the weights, if a decay is set.
        operations: floating-point operations of a token with the parameters, forward and backward.
        evaluator: measures the evaluation sets.
        parts: the view of the run that checkpoints are made of.
        saver: writes the checkpoints.
        before_save: calls ``on_save`` of the hooks with the run before each checkpoint.
        facts: the content of plan.json: everything that is known of the run before the first step.
    """

    position: Position
    schedule: LRScheduler
    average: Average
    operations: int
    evaluator: Evaluator
    parts: Parts
    saver: Saver
    before_save: Callable[[Run], None]
    facts: dict[str, Any]

    @property
    def accelerator(self) -> Accelerator:
        """Return Accelerate's object, which agrees with the plan."""
        return self.strategy.accelerator

    @property
    def model(self) -> nn.Module:
        """Return the prepared model, which computes."""
        return self.strategy.model

    @property
    def optimizer(self) -> Any:
        """Return the result of ``accelerator.prepare``, for loops that step the optimizer."""
        return self.strategy.prepared_optimizer

    # -- the position -----------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Return the optimizer steps done."""
        return self.position.step

    @property
    def samples(self) -> int:
        """Return the samples that all ranks have consumed."""
        return self.position.samples

    @property
    def rates(self) -> Sequence[Any]:
        """Return the learning rate of each parameter group in the last step."""
        return self.position.rates

    @property
    def skipped_steps(self) -> int:
        """Return the steps that the fp16 scaler or ``on_nan: skip`` left out."""
        return self.position.skipped_steps

    @property
    def last_evaluation(self) -> dict[str, float]:
        """Return the newest ``eval/...`` numbers of each evaluation set."""
        return self.position.last_evaluation

    @property
    def stopping(self) -> bool:
        """Return whether the ranks have agreed that training ends with this step."""
        return self.position.stopping

    @property
    def stop_signal(self) -> int:
        """Return the number of the signal that asked for the end. 0 if code asked."""
        return self.position.stop_signal

    # -- steps ------------------------------------------------------------------------------------

    def windows(self) -> Iterator[Window]:
        """Yield the optimizer steps that are left: this rank's micro-batches, on the CPU.

        The global order depends on the seed alone. ``trainer.now()`` is the moment of the window
        that was yielded last, until the last window is done.
        """
        read_over = self.train_data.samples_to_read_over()
        if read_over:
            self.say(
                "the stream keeps no state, or shuffles in a buffer: "
                f"{read_over:,} samples are read over first"
            )
        moment: Now | None = None
        try:
            steps = self.last_step - self.step
            for window in self.train_data.windows(self.samples, steps, done=self.step):
                moment = window.now
                set_now(moment)
                yield window
        finally:
            if current() is moment:  # another run may have noted a later moment
                set_now(None)

    def train_mode(self) -> None:
        """Put the model into training mode, except for ``Task.held_in_evaluation``."""
        self.evaluator.train_mode()

    def advance(self, window: Window, *, skipped: bool = False) -> None:
        """Count an optimizer step with this window. Move schedule, average and a save in flight on.

        Args:
            skipped: the fp16 scaler left the step out. Then neither schedule nor average moves.
                (After a step that ``on_nan: skip`` left out they move.)

        Raises:
            CheckpointError: a save failed on some rank, and ``on_save_error`` is ``stop``.
        """
        position = self.position
        # The rates of the step that was made: a new object even for a rate that is a tensor.
        position.rates = [group["lr"] + 0.0 for group in self.schedule.optimizer.param_groups]
        position.step += 1
        position.samples = window.end

        if skipped:
            position.skipped_steps += 1
            position.skipped_in_a_row += 1
        else:
            position.skipped_in_a_row = 0
            self.schedule.step()
            self.average.update()

        # The last step waits for the save anyway, and exports the model even if the save fails.
        if position.step < self.last_step:
            self.saver.poll()

    def whole_parameters(self, *names: str) -> AbstractContextManager[nn.Module]:
        """Surround code that reads or changes parameters, which strategies keep in parts.

        ``with run.whole_parameters("teacher") as model:`` gives the model of ``build_model``, with
        the values of the named modules or parameters whole and in float32 on every rank (all values
        without a name). A change in the block, the same on all ranks, is kept. Elsewhere a change
        in place is refused if the strategy would lose the change.
        """
        from .strategies.whole_parameters import whole_parameters

        return whole_parameters(self.strategy, names)

    # -- evaluation -------------------------------------------------------------------------------

    def evaluate(self, names: Collection[str] | str | None = None) -> dict[str, float]:
        """Measure on whole evaluation sets. Every world size gives the same numbers.

        A signal ends the evaluation between two batches. Then the result is empty, and ``stopping``
        is set.

        Args:
            names: of the sets, or the name of a single set. By default all.

        Returns:
            The values of these sets: ``eval/loss``, or ``eval/clean/loss`` of a set with a name.

        Raises:
            DataError: there is no such set.
        """
        with self.meter.paused("evaluation"):
            return self.evaluator.evaluate(names)

    @contextmanager
    def evaluating(self, evaluation_set: MeasuredSet | None = None) -> Iterator[None]:
        """Surround code that computes with the model as an evaluation does.

        The model is in evaluation mode, has the same buffers on every rank and the moving average,
        if a decay is set, and records no gradients.

        Args:
            evaluation_set: of ``run.evaluation_sets``, for ``trainer.now()``, if the code computes
                batches of this set.
        """
        with self.meter.paused("evaluation"), self.evaluator.evaluating(evaluation_set):
            yield

    # -- checkpoints and exports ------------------------------------------------------------------

    def saves_at(self, step: int) -> bool:
        """Return whether a checkpoint is due at a step. The last step is saved in any case."""
        interval = self.length.save_every
        return interval is not None and interval.is_due_at(step)

    def save(self) -> None:
        """Begin a checkpoint of this step, which is written while training continues.

        Call it between steps.

        Raises:
            TrainerError: a value is not finite.
            CheckpointError: the checkpoint cannot be written, and ``on_save_error`` is ``stop``.
        """
        with self.meter.paused("saving"):
            self.agreement.check_same(self.strategy.fingerprint)
            self.before_save(self)
            self.saver.save(self.parts)

    def export(
        self, directory: str | Path, *, beside: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Write the model (the moving average, if a decay is set) as safetensors.

        Args:
            beside: the texts of further files in the folder, by name.

        Raises:
            CheckpointError: the folder cannot be written, or gives another model when
                users load it.
        """
        form = self.parts.model_file
        check: Callable[[Path], object] = bool
        if form.load:
            from .checkpoint.same_logits import check_of

            with self.evaluating():
                check = check_of(
                    self.model,
                    form.load,
                    exported=self.task.exported,
                    parameters=self.facts["parameters"],
                    rounded=self.plan.mixed_precision != "no",
                    say=self.say,
                )

        def save_beside(folder: Path) -> None:
            self.parts.save_beside(folder, beside)
            check(folder)

        with self.meter.paused("saving"), self.average.applied():
            self.agreement.check_same(self.strategy.fingerprint)
            export_model(self.strategy, self.agreement, form, Path(directory), save_beside)

    # -- the job ----------------------------------------------------------------------------------

    def stop(self, reason: str = "", *, agreed: bool = False) -> None:
        """End training at a step boundary that all ranks agree on. Any rank may ask alone.

        Args:
            agreed: every rank asks now, because of numbers that are the same on all ranks (an
                evaluation): the next step is the last.
        """
        if reason:
            self.position.stop_reason = reason
            self.say(f"stopping: {reason}")
        self.agreement.stop(agreed=agreed)

    def fail(self, text: str) -> NoReturn:
        """End the run because of a value that is not finite, after a save in flight.

        Raises:
            TrainerError: always.
        """
        with self.meter.paused("saving"):
            self.saver.fail(text)

    def how_to_resume(self) -> str:
        """Return how a job that ends now is resumed. Any thread may call it."""
        from .checkpoint.discover import how_to_resume

        return how_to_resume(self.saver.folder)

    def tracker(self, name: str) -> Any:
        """Return the object of a tracker's library, such as the run of W&B, to log pictures.

        The trackers start at the first logged step. Other processes than the main process get an
        object that does nothing.

        Raises:
            ValueError: no tracker of this name runs.
        """
        return self.accelerator.get_tracker(name, unwrap=True)

    def close(self) -> None:
        """Wait for the save in flight, and release the engine. Your own script calls it last."""
        self.saver.finish()
        self.agreement.close()
        self.strategy.close()
        self.directory.release()
