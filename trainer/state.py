"""What a training is made of, without its loop: built from a task, at a position, saved and gone on with.

``Trainer`` is one with a loop. A loop of your own takes this, and writes plain Accelerate around it
(``examples/own_loop.py``): it has the exact data order and the checkpoints, under every strategy.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from accelerate.utils import set_seed
from torch import nn

from .build import build_data, build_model, evaluation_size, held_in_evaluation, optimizer_of, schedule_of
from .checkpoint import OptimizerForm, Saver, Start, find_start
from .checkpoint.export import ModelFile, check_storable, export_model
from .config.dump import to_yaml
from .config.fingerprint import task_facts
from .config.train_config import TrainConfig, every_steps
from .data.augment import seed_of
from .data.indexed import Layout, TrainData, Window
from .distributed.agreement import Control
from .errors import DEFAULT, DataError, Origin
from .launching import Launched, launch
from .optim.ema import Average, NoAverage
from .optim.optimizers import state_slots
from .optim.schedule import check_schedule
from .reporting.banner import banner, facts
from .reporting.directory import RunDirectory
from .reporting.meter import Meter
from .task import Task, own_optimizer


class Remembered(Protocol):
    """What checkpoints keep the state of, as a callback does."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def pinned_steps(self) -> Collection[int]: ...


class TrainState:
    """A task's data, model, optimizer and schedule, prepared under the strategy that was launched, and how far it is.

    It goes on from a checkpoint where ``config.resume`` says so, and claims ``config.output_dir``. Every rank enters
    every method.

    Args:
        task: what to learn.
        config: how long, with which batch, rate and so on.
        launched: the result of ``launch``; by default launched here, without files of its own.
        callbacks: whose state belongs into checkpoints.
        origins: of the config's values, by key, for messages.

    Attributes:
        task, config, plan, accelerator: what it was made from; the plan, with warm-up in optimizer steps.
        strategy: what computes, for loops over several models: forward and ``strategy.backward(loss)`` of a micro-batch
            in ``with strategy.micro_step(boundary=whether it is the last)``, then ``strategy.finish_step()``.
        data: what ``Task.build_data`` returned.
        schedule: of the learning rate; ``advance`` steps it.
        step, samples: optimizer steps done, samples consumed by all ranks.
        total_steps, steps_per_epoch: the step at which training ends; None for the length of a stream.
        save_every: the config's, in optimizer steps, or None.
        skipped_steps: steps that the fp16 scaler skipped.
        last_evaluation: ``eval/...`` numbers of the last evaluation.
        is_main: whether this is the main process, which writes.
        directory: the run's folder; its ``path`` is ``config.output_dir``.
        callbacks: whose state belongs into checkpoints; a trainer's are in the order of their calls.

    Raises:
        ConfigError, LaunchError, DataError: before the first step, on every rank.
    """

    def __init__(
        self,
        task: Task,
        config: TrainConfig,
        launched: Launched | None = None,
        *,
        callbacks: Sequence[Remembered] = (),
        origins: Mapping[str, Origin] | None = None,
    ) -> None:
        launched = launched or launch(config, origins=origins, optimizer_built_by=own_optimizer(task))
        self.task, self.config, self.callbacks = task, config, callbacks
        self.task_facts = task_facts(task, config.task)  # now: some tasks change while they are trained
        self.plan, self.accelerator = launched.plan, launched.accelerator
        # One of its own: several trainings may share a launch, one after the other or side by side.
        self.strategy = type(launched.strategy)(launched.plan, launched.accelerator)
        self.is_main = self.accelerator.is_main_process
        self.control = Control()
        self.meter = Meter(self.accelerator.device)
        self.directory = RunDirectory(config.output_dir, main=self.is_main)
        origins, folder = origins or {}, self.directory.path / "checkpoints"
        home = origins.get("output_dir", DEFAULT).place
        with self.directory.locked(self.control, home=home):
            start = find_start(config.resume, folder, self.control, home=origins.get("resume", DEFAULT).place)
            self.directory.claim(self.control, overwrite=config.overwrite, home=home, continues=start.continues)
        notices = self._build(origins, start)
        self.saver = Saver(self, folder, start)
        self._announce([*notices, *self.saver.resume()])

    def _build(self, origins: Mapping[str, Origin], start: Start) -> list[str]:
        """Build everything, in the order and under the seeds that every layout shares; returns notices."""
        plan, config, task, strategy = self.plan, self.config, self.task, self.strategy
        check_schedule(plan)
        self.layout = Layout(
            rank=self.accelerator.process_index,
            world_size=plan.world_size,
            micro_batch_size=plan.micro_batch_size,
            accumulation_steps=plan.accumulation_steps,
        )
        pin_memory = plan.device == "cuda"
        self.data, self.train_data = build_data(task, config, self.layout, origins, pin_memory=pin_memory)
        self.steps_per_epoch = self.train_data.steps_per_epoch  # None for a stream
        self._check_same_data()
        self.total_steps = self._last_step(start)
        self.save_every = every_steps(config.save_every, self.steps_per_epoch)
        self.plan = plan = plan.with_length(self.total_steps)
        model, of_model = build_model(task, config, plan)
        check_storable(model)
        self.model_file = ModelFile.of(model)
        self._held = held_in_evaluation(model)
        optimizer, of_optimizer = optimizer_of(task, model, plan)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        self.optimizer_form = OptimizerForm.of(model, optimizer, saved=config.keep_last > 0)
        strategy.prepare(model, optimizer)
        strategy.verify()
        set_seed(seed_of(config.seed, self.layout.rank))  # dropout differs between ranks
        self.schedule = schedule_of(task, config, plan, strategy.optimizer, self.total_steps)
        self.average = NoAverage() if config.ema_decay is None else Average(strategy, config.ema_decay)
        self.step = self.samples = self.skipped_steps = self.skipped_in_a_row = 0
        self.last_evaluation: dict[str, float] = {}
        return of_model + of_optimizer

    def _last_step(self, start: Start) -> int:
        """The optimizer step at which training ends: by epochs from where it starts, or by max_steps."""
        config, ends = self.config, []
        if config.epochs is not None:
            assert isinstance(self.train_data, TrainData), "epochs are refused for streams"
            step, samples = (start.found.manifest[key] for key in ("step", "samples")) if start.found else (0, 0)
            ends.append(int(step) + self.train_data.steps_left(int(samples), config.epochs))
        if config.max_steps is not None:
            ends.append(config.max_steps)
        return min(ends)

    def _check_same_data(self) -> None:
        """Raise ``DataError`` where ranks have data sets of different sizes: some samples would come twice."""
        sizes = self.control.gather((self.train_data.size, evaluation_size(self.data.evaluation)))
        for rank, size in enumerate(sizes):
            if size != sizes[0]:
                raise DataError(
                    f"rank {rank} has {size[0]} training and {size[1]} evaluation samples, rank 0 has {sizes[0][0]} "
                    f"and {sizes[0][1]}: build_data must give every rank the same data, which the trainer divides"
                )

    def _announce(self, notices: Sequence[str]) -> None:
        self.facts = self._facts(notices)
        if self.saver.finished:
            self.directory.main = False  # every file stays as it is
            return self.say(f"finished already at step {self.step}; nothing to do")
        self.directory.write("config.yaml", to_yaml(self.config))
        self.directory.write("plan.json", json.dumps(self.facts, indent=2, default=str) + "\n")
        self.say(banner(self.facts))

    def _facts(self, notices: Sequence[str]) -> dict[str, Any]:
        """Return what plan.json and the banner say of a training that is ready to start."""
        plan, optimizer, own = self.plan, self.strategy.optimizer, own_optimizer(self.task)
        return facts(
            plan,
            model_class=type(self.model).__name__,
            distributed_type=str(self.accelerator.distributed_type).rsplit(".", 1)[-1],
            seed=self.config.seed,
            **self.task_facts,
            train_samples=self.train_data.size,
            evaluation_samples=evaluation_size(self.data.evaluation),
            steps_per_epoch=self.steps_per_epoch,
            total_steps=self.total_steps,
            parameters=self.parameters,
            trainable_parameters=self.trainable,
            optimizer=plan.optimizer if own is None else f"{type(optimizer).__name__} of {own}",
            **self.strategy.costs(state_slots(optimizer)),
            output_dir=str(self.directory.path),
            checkpoint_bytes=self.saver.bytes,
            notices=[*plan.notices, *notices],
        )

    @property
    def model(self) -> nn.Module:
        """The prepared model: what computes."""
        return self.strategy.model

    def train_mode(self) -> None:
        """Put the model into training mode, but for the parts that build_model left in evaluation mode."""
        self.model.train()
        for module in self._held:
            module.training = False

    @property
    def optimizer(self) -> Any:
        """The optimizer as ``accelerator.prepare`` gives it, for loops that step it themselves."""
        return self.strategy.prepared_optimizer

    def windows(self) -> Iterator[Window]:
        """The optimizer steps that are left: this rank's micro-batches of each, on the CPU, in the global order."""
        if self.train_data.skips:
            self.say(f"the stream keeps no state: {self.train_data.skips:,} samples are read over first")
        return self.train_data.windows(self.samples, self.total_steps - self.step)

    def advance(self, window: Window, *, skipped: bool = False) -> None:
        """The optimizer was stepped with this window: count it, move schedule and average on, and a save in flight.

        Args:
            skipped: the fp16 scaler left the step out; then neither schedule nor average moves.

        Raises:
            CheckpointError: a save failed on some rank, and ``on_save_error`` is ``stop``.
        """
        self.step, self.samples = self.step + 1, window.end
        self.skipped_steps += skipped
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if skipped else 0
        if not skipped:
            self.schedule.step()
            self.average.update()
        self.saver.poll()

    def save(self) -> None:
        """Begin a checkpoint of this step, written while training goes on. Between steps.

        Raises:
            CheckpointError: it cannot be written, and ``on_save_error`` is ``stop``.
        """
        with self.meter.paused("saving"):
            self.saver.save()

    def export(self, directory: str | Path) -> None:
        """Write the model (its moving average, if one is kept) as safetensors."""
        with self.meter.paused("saving"), self.average.applied():
            export_model(self.strategy, self.control, self.task, self.model_file, Path(directory))

    def stop(self, reason: str = "", *, agreed: bool = False) -> None:
        """End training at a step boundary that all ranks agree on. Any rank may ask alone.

        Args:
            agreed: every rank asks now, by numbers that are the same on all (an evaluation): the next step is the last.
        """
        if reason:
            self.say(f"stopping: {reason}")
        self.control.stop(agreed=agreed)

    def close(self) -> None:
        """Wait for the save in flight, and give the engine back. A script of your own calls it last."""
        self.saver.finish()
        self.strategy.close()
        self.directory.release()

    def say(self, text: str) -> None:
        """One line to the terminal and to log.txt, from the main process."""
        if self.is_main:
            print(text, flush=True)
            self.directory.line(text)
