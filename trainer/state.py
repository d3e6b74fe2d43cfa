"""A training without its loop: its parts, built from a task, and its position, saved and gone on
with.

``Trainer`` is one with a loop. A loop of your own takes this, and writes plain Accelerate around it
(``examples/own_loop.py``): it has the exact data order and the checkpoints, under every strategy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from accelerate.utils import set_seed
from torch import nn

from .building import alike
from .building import parts as build
from .building.meta_model import MetaModel
from .checkpoint import (
    OptimizerForm,
    Parts,
    SavePolicy,
    Saver,
    Start,
    StatefulCallback,
    restore,
    store,
)
from .checkpoint.checksums import base_weights
from .checkpoint.disk import check_shared
from .checkpoint.export import ModelFile, check_storable, export_dtypes, export_model
from .checkpoint.restarted import how_to_go_on, restart_notices, start_of_attempt
from .config.dump import to_yaml
from .config.fingerprint import task_facts
from .config.train_config import TrainConfig, every_steps, profiled_steps
from .data.alike import held_alike
from .data.batches import Layout, Window
from .data.indexed import IndexedData
from .data.seeds import seed_of
from .distributed.agreement import Agreement
from .errors import DEFAULT, ConfigError, Origin, Problem
from .faults.watchdog import Watchdog
from .launching import Launched, launch
from .optim.ema import Average
from .optim.schedule import check_schedule
from .reporting.banner import banner, facts
from .reporting.directory import RunDirectory
from .reporting.machine import machine
from .reporting.meter import Meter
from .strategies.in_place import whole_parameters
from .strategies.meta_device import is_on_meta
from .strategies.optimizer_probe import check_divisible
from .task import Task, own_optimizer
from .text import hidden, listed, renamed_arguments

# Kept in checkpoints beside the step.
COUNTERS = (
    "samples",
    "skipped_steps",
    "skipped_in_a_row",
    "last_evaluation",
    "evaluation_owed",
    "not_finite_at_start",
)


class TrainState:
    """A task's data, model, optimizer and schedule, prepared under the strategy that was launched,
    and how far it is.

    It goes on from a checkpoint where ``config.resume`` says so, and claims ``config.output_dir``.
    Every method is
    collective: call it on every rank.

    Args:
        task: what to learn.
        config: how long, with which batch, rate and so on.
        launched: the result of ``launch``; by default launched here, without files of its own.
        callbacks: whose state belongs into checkpoints.
        origins: of the config's values, by key, for messages.

    Attributes:
        task, config, plan, accelerator: what it was made from; the plan, with warm-up in optimizer
            steps.
        strategy: what computes, for loops over several models: forward and
            ``strategy.backward(loss)`` of a micro-batch in ``with
            strategy.micro_step(boundary=whether it is the last)``, then ``strategy.finish_step()``.
        data: what ``Task.build_data`` returned.
        schedule: of the learning rate; ``advance`` steps it.
        told: what is said of optimizer and schedule as they were built: the settings of each
            parameter group and its number of trainable elements, the schedule's class, and in place
            of the plan's values what a task has built.
        step, samples: optimizer steps done, samples consumed by all ranks.
        step_began: samples consumed before the last of these steps.
        total_steps, steps_per_epoch: the step at which training ends; None for the length of a
            stream.
        save_every: the config's, in optimizer steps, or None.
        skipped_steps: steps that the fp16 scaler skipped, and those that ``on_nan: skip`` left out.
        last_evaluation: ``eval/...`` numbers of the last evaluation.
        not_finite_at_start: buffers and frozen parameters that held values that are not finite
            before the first step (a mask of -inf), and so may in checkpoints.
        finished: whether a run has come to its end here already: nothing is left to do, and nothing
            is written.
        is_main: whether this is the main process, which writes.
        directory: the run's folder; its ``path`` is ``config.output_dir``.
        callbacks: whose state belongs into checkpoints; a trainer's are in the order of their
            calls.

    Raises:
        ConfigError, LaunchError, DataError: before the first step, on every rank.
    """

    @renamed_arguments(where="origins")
    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        launched: Launched | None = None,
        *,
        callbacks: Sequence[StatefulCallback] = (),
        origins: Mapping[str, Origin] | None = None,
    ) -> None:
        self.task, self.config, origins = task, config, origins or {}
        self.callbacks = self._all_callbacks(callbacks, origins)
        launched = launched or launch(
            config, origins=origins, optimizer_built_by=own_optimizer(task)
        )
        self.task_facts = task_facts(
            task, config.task
        )  # now: some tasks change while they are trained
        self.plan, self.accelerator = launched.plan, launched.accelerator
        # One of its own: several trainings may share a launch, one after the other or side by side.
        self.strategy = type(launched.strategy)(launched.plan, launched.accelerator)
        with self._watched(
            lambda: (0, "set-up", 0), log=lambda text: None
        ):  # there may be no folder to log to
            self._set_up(origins)

    def _set_up(self, origins: Mapping[str, Origin]) -> None:
        """Claim the folder, build the parts, and begin where the config says."""
        config = self.config
        self.is_main = self.accelerator.is_main_process
        self.agreement = Agreement(timedelta(minutes=config.timeout_minutes))
        alike.check_settings(config, self.plan, self.task_facts, self.agreement)
        self.meter = Meter(self.accelerator.device)
        self.machine = machine(self.accelerator.device, self.agreement.gather)
        at = origins.get("output_dir", DEFAULT)
        self.directory = RunDirectory(config.output_dir, main=self.is_main, origin=at)
        folder = self.directory.path / "checkpoints"
        with self.directory.locked(self.agreement):
            if (
                self.agreement.distributed and config.keep_last
            ):  # before anything in it is looked for
                check_shared(self.directory.path, self.agreement)
            start = start_of_attempt(
                config.resume, folder, self.agreement, origin=origins.get("resume", DEFAULT)
            )
            self.directory.claim(
                self.agreement, overwrite=config.overwrite, continues=start.continues
            )
        self.base_weights: str | None = None
        notices, unfilled = self._build(origins, start)
        policy = SavePolicy(
            keep_last=config.keep_last,
            keep_every=config.keep_every,
            on_save_error=config.on_save_error,
            in_background=config.save_in_background,
        )
        self.saver = Saver(folder, self.agreement, policy, self.say)
        warnings = self.saver.prepare(
            self._parts(), 0 if self.finished else self._most_checkpoints()
        )
        filled = [] if unfilled is None else unfilled.fill(self._parts(), self.agreement)
        self.base_weights = base_weights(self._parts(), self.agreement)
        loaded = self.load(start)
        odd = self._look_for_odd_values(resumed=start.found is not None)
        self._announce(
            [*notices, *filled, *loaded, *odd, *warnings, *self.directory.notices], origins
        )

    def _watched(
        self, position: Callable[[], tuple[int, str, int]], *, log: Callable[[str], None]
    ) -> Watchdog:
        """Return a watch over the ranks, for a block that all enter."""
        return Watchdog(
            rank=self.accelerator.process_index,
            world_size=self.accelerator.num_processes,
            position=position,
            hang_seconds=self.config.hang_seconds,
            gpu=self.plan.device == "cuda",
            advice=lambda: how_to_go_on(Path(self.config.output_dir) / "checkpoints"),
            log=log,
        )

    def _all_callbacks(
        self, added: Sequence[Any], origins: Mapping[str, Origin]
    ) -> Sequence[StatefulCallback]:
        """Return the callbacks that this training has; a class above this one adds its own."""
        return added

    def _build(
        self, origins: Mapping[str, Origin], start: Start
    ) -> tuple[list[str], MetaModel | None]:
        """Build everything, in the order and under the seeds that every layout shares; returns
        notices, and what is to be filled yet.
        """
        plan, config, task, strategy = self.plan, self.config, self.task, self.strategy
        check_schedule(plan)
        batch, place = divmod(self.accelerator.process_index, plan.tensor_parallel_size)
        self.layout = Layout(
            rank=batch,
            world_size=plan.data_parallel_size,
            micro_batch_size=plan.micro_batch_size,
            accumulation_steps=plan.accumulation_steps,
            counts=place == 0,
        )
        pin_memory = plan.device == "cuda"
        self.data, self.train_data = build.build_data(
            task, config, self.layout, origins, pin_memory=pin_memory
        )
        self.steps_per_epoch = self.train_data.steps_per_epoch  # None for a stream
        kept = config.keep_last > 0 or start.found is not None  # checkpoints are written, or read
        self.sampled = alike.sampled(config, self.data, self.train_data, self.agreement, kept=kept)
        self.total_steps = self._last_step(start)
        ended = start.continues and start.step == self.total_steps == self.directory.ended_at()
        [self.finished, *_] = self.agreement.gather(ended)
        self.save_every = every_steps(config.save_every, self.steps_per_epoch)
        self.plan = plan = plan.with_length(self.total_steps)
        model, of_model = build.build_model(task, config, plan)
        of_data = build.lone_example_notices(model, self.train_data, self.total_steps)
        source = task.pretrained(model) if is_on_meta(model) else None
        self.model_file = ModelFile.of(model, export_dtypes(model, config.export_dtype, source))
        rounded = self.model_file.most_of()
        if rounded is not None:
            reason = "as the files that it starts from; " if config.export_dtype == "auto" else ""
            kind = str(rounded).removeprefix("torch.")
            of_model.append(
                f"the exported model is in {kind}, {reason}checkpoints keep what learns in float32"
            )
        whole = start.found is not None and self.model_file.names is None  # is in the checkpoint
        unfilled = MetaModel.of(model, task, config.seed, resumes=whole)
        check_storable(model)
        self._held = build.held_in_evaluation(model)
        optimizer, told_of_optimizer, of_optimizer = build.optimizer_of(task, config, model, plan)
        read_later = self.model_file.names is None and (
            start.found is not None or config.weights is not None
        )
        alike.check_model(model, optimizer, self.agreement, values_come_later=read_later)
        self.parameters = build.count_parameters(model)
        self.trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self.optimizer_form = OptimizerForm.of(
            model, optimizer, saved=kept, device=strategy.step_device
        )
        check_divisible(optimizer, strategy, own_optimizer(task))
        strategy.prepare(model, optimizer)
        strategy.verify()
        self.agreement.limit_waits()
        offloaded = plan.device == "cuda" and strategy.steps_on_cpu(plan)
        of_device = [build.share_cores(self.agreement)] if offloaded else []
        set_seed(seed_of(config.seed, self.layout.rank))  # dropout differs between batches
        self.schedule, told = build.schedule_of(
            task, config, plan, strategy.optimizer, self.total_steps
        )
        self.told = {**told_of_optimizer, **told}
        # Live views: taken once, they follow the weights.
        self._shards = (
            [shard for shard in strategy.shards() if shard.tensor.numel()]
            if config.ema_decay
            else []
        )
        self.average = Average(
            [shard.tensor for shard in self._shards], strategy.write_back, config.ema_decay
        )
        self.step = self.samples = self.step_began = self.skipped_steps = self.skipped_in_a_row = 0
        self.last_evaluation: dict[str, float] = {}
        self.evaluation_owed = False  # at this step, since a signal asked to stop
        self.not_finite_at_start: list[str] | None = None  # not known yet
        self.stop_reason = ""  # what this rank said when it asked for a stop
        notices = [
            *task.notices(),
            *of_model,
            *of_data,
            *of_optimizer,
            *strategy.notices,
            *of_device,
            *self._untraced(start),
        ]
        return notices, unfilled

    def _untraced(self, start: Start) -> list[str]:
        """Return a notice where the steps to be profiled are none of this run's; its first one
        never is.
        """
        steps = self.config.profile_steps
        if steps is None or start.step + 1 < profiled_steps(steps)[0] <= self.total_steps:
            return []
        run = f"begins at step {start.step}, ends at {self.total_steps}"
        return [f"profile_steps {steps}: nothing is traced: this run {run}"]

    def _last_step(self, start: Start) -> int:
        """Return the optimizer step at which training ends: by epochs from where it starts, or by
        max_steps.
        """
        config, ends = self.config, []
        if config.epochs is not None:
            assert isinstance(self.train_data, IndexedData), "epochs are refused for streams"
            ends.append(start.step + self.train_data.steps_left(start.samples, config.epochs))
        if config.max_steps is not None:
            ends.append(config.max_steps)
        end = min(ends)
        if start.found is not None and start.step > end:
            key = "max_steps" if config.max_steps == end else "epochs"
            rule = f"ends the run at step {end}, and {start.found.path} is at step {start.step} already; raise it"
            raise ConfigError(
                Problem(origin=Origin("resume", key=key), value=getattr(config, key), rule=rule)
            )
        return end

    def _announce(self, notices: Sequence[str], origins: Mapping[str, Origin]) -> None:
        self.facts = self._facts(notices)
        if self.finished:
            self.directory.main = False  # every file stays as it is
            return self.say(f"finished already at step {self.step}; nothing to do")
        # Defaults of the task in whose place a launch file says something: as the config's own they
        # would disagree.
        defaults = [key for key, origin in origins.items() if origin.is_default]
        replaced = [key for key in defaults if not self.plan.origin(key).is_default]
        self.directory.write("config.yaml", to_yaml(self.config, without=replaced))
        self.directory.write_json("plan.json", self.facts)
        self.say(banner(self.facts))

    def _facts(self, notices: Sequence[str]) -> dict[str, Any]:
        """Return what plan.json and the banner say of a training that is ready to start."""
        plan = self.plan
        return facts(
            plan,
            **self.told,
            model_class=type(self.model).__name__,
            distributed_type=str(self.accelerator.distributed_type).rsplit(".", 1)[-1],
            machine=self.machine,
            seed=self.config.seed,
            **self.task_facts,
            train_samples=self.train_data.size,
            evaluation_samples=build.evaluation_size(self.data.evaluation),
            steps_per_epoch=self.steps_per_epoch,
            total_steps=self.total_steps,
            parameters=self.parameters,
            trainable_parameters=self.trainable,
            state_bytes_per_rank=max(self.agreement.gather(self.strategy.state_bytes())),
            output_dir=str(self.directory.path),
            checkpoint_bytes=self.saver.bytes,
            notices=[*plan.notices, *notices],
        )

    @property
    def model(self) -> nn.Module:
        """Return the prepared model: what computes."""
        return self.strategy.model

    def whole_parameters(self, *names: str) -> AbstractContextManager[nn.Module]:
        """Surround code that reads or changes parameters, which a strategy keeps in parts or in
        other precision.

        ``with trainer.whole_parameters("teacher") as model:`` gives the model as ``build_model``
        built it, with the named modules' or parameters' values whole and in float32 on every rank
        (without a name all of them). What the block changes, alike on all ranks, is kept. Elsewhere
        a change in place is refused where it would be lost.
        """
        return whole_parameters(self.strategy, names)

    def train_mode(self) -> None:
        """Put the model into training mode, but for the parts that build_model left in evaluation
        mode.
        """
        self.model.train()
        for module in self._held:
            module.training = False

    @property
    def optimizer(self) -> Any:
        """Return the optimizer as ``accelerator.prepare`` gives it, for loops that step it
        themselves.
        """
        return self.strategy.prepared_optimizer

    def windows(self) -> Iterator[Window]:
        """Yield the optimizer steps that are left: this rank's micro-batches, on the CPU, in the
        global order.
        """
        if skips := self.train_data.skips():
            self.say(
                f"the stream keeps no state, or shuffles in a buffer: {skips:,} samples are read over first"
            )
        return held_alike(
            self.train_data.windows(self.samples, self.total_steps - self.step),
            self.agreement.gather,
        )

    def advance(self, window: Window, *, skipped: bool = False) -> None:
        """Count a step of the optimizer with this window: move schedule and average on, and a save
        in flight.

        Args:
            skipped: the fp16 scaler left the step out; then neither schedule nor average moves.

        Raises:
            CheckpointError: a save failed on some rank, and ``on_save_error`` is ``stop``.
        """
        self.step, self.step_began, self.samples = self.step + 1, self.samples, window.end
        self.skipped_steps += skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if not skipped:
            self.schedule.step()
            self.average.update()
        if (
            self.step < self.total_steps
        ):  # the last step waits for it anyway, and is to leave its model
            self.saver.poll()

    def _parts(self) -> Parts:
        """Return what a checkpoint of this step is made of."""
        settings = {
            **self.task_facts,
            "train_samples": self.train_data.size,
            "total_steps": self.total_steps,
        }
        if self.base_weights is not None:
            settings["base_weights"] = self.base_weights
        counters = {
            **{name: getattr(self, name) for name in COUNTERS},
            "spent": self.meter.until_now(),
        }
        averages = list(zip(self._shards, self.average.average, strict=True))
        return Parts(
            step=self.step,
            counters=counters,
            strategy=self.strategy,
            optimizer_form=self.optimizer_form,
            averages=None if self.config.ema_decay is None else averages,
            schedule=self.schedule,
            data=self.train_data,
            sampled=self.sampled,
            task=self.task,
            callbacks=self.callbacks,
            model_file=self.model_file,
            settings=hidden(vars(self.config) | self.plan.as_dict() | settings),
            config=hidden(asdict(self.config)),
            plan=self.plan.as_dict(),
            run=facts(self.plan, **self.told, machine=self.machine, step=self.step, **counters),
        )

    def _look_for_odd_values(self, *, resumed: bool) -> list[str]:
        """Note which buffers and frozen parameters are not finite before the first step, unless the
        checkpoint says it.

        Returns notices: a checkpoint of an earlier version may hold statistics that a step without
        value has spoilt.
        """
        if self.not_finite_at_start is not None or self.config.keep_last == 0:
            return []
        own = self._parts().not_finite("buffer", "frozen")
        everywhere = self.agreement.gather(own)
        self.not_finite_at_start = sorted({name for names in everywhere for name in names})
        if not (resumed and self.not_finite_at_start):
            return []
        return [
            f"the checkpoint holds values that are not finite: {listed(self.not_finite_at_start)}"
        ]

    def _most_checkpoints(self) -> int:
        """Count the checkpoints that there will be at once, the one that is being written included."""
        config, total = self.config, self.total_steps
        saves = 1 if self.save_every is None else -(-total // self.save_every)
        kept = min(saves, config.keep_last + 1) + (config.best_metric is not None)
        return kept + (total // config.keep_every if config.keep_every else 0)

    def load(self, start: Start) -> list[str]:
        """Begin where ``start`` says, or with the weights that the config names; returns what is
        worth knowing.

        Raises:
            ConfigError: the configuration changes the numbers of the run, and that is not allowed.
            CheckpointError: the checkpoint holds another model, or what no run has saved.
        """
        notices = [f"passed over {one.path.name}: {one.problem}" for one in start.passed_over]
        if start.found is not None:
            allowed = self.config.allow_config_change
            counters, changes = restore.load(self._parts(), start.found, allow_change=allowed)
            self.meter.before = counters.pop("spent", self.meter.before)
            vars(self).update(counters)
            notices += [f"resumed from {start.found.path}", *changes]
        elif start.continues:
            notices.append(
                f"resume: auto: {self.directory.path} holds no checkpoint: starts at step 0"
            )
        notices += restart_notices()
        if start.found is None and self.config.weights is not None:
            notices += restore.load_weights(
                self._parts(), Path(self.config.weights), self.agreement
            )
        if start.continues and start.found is not None:
            self.saver.last_step = self.step
        if start.continues and not self.finished:
            self.agreement.run_on_main(lambda: store.set_aside(start.passed_over))
            self.directory.cut_rows(self.step)
        return notices

    def save(self) -> None:
        """Begin a checkpoint of this step, written while training goes on. Between steps.

        Raises:
            CheckpointError: it cannot be written, and ``on_save_error`` is ``stop``.
        """
        with self.meter.paused("saving"):
            self.agreement.check_same(self.strategy.fingerprint)
            self.saver.save(self._parts())

    def export(self, directory: str | Path) -> None:
        """Write the model (its moving average, if one is kept) as safetensors."""
        with self.meter.paused("saving"), self.average.applied():
            self.agreement.check_same(self.strategy.fingerprint)
            beside = self._parts().save_beside
            export_model(self.strategy, self.agreement, self.model_file, Path(directory), beside)

    def stop(self, reason: str = "", *, agreed: bool = False) -> None:
        """End training at a step boundary that all ranks agree on. Any rank may ask alone.

        Args:
            agreed: every rank asks now, by numbers that are the same on all (an evaluation): the
                next step is the last.
        """
        if reason:
            self.stop_reason = reason
            self.say(f"stopping: {reason}")
        self.agreement.stop(agreed=agreed)

    def close(self) -> None:
        """Wait for the save in flight, and give the engine back. A script of your own calls it
        last.
        """
        self.saver.finish()
        self.agreement.close()
        self.strategy.close()
        self.directory.release()

    def say(self, text: str) -> None:
        """Print one line, and add it to log.txt, from the main process."""
        if self.is_main:
            print(text, flush=True)
            self.directory.line(text)
