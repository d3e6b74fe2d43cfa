"""The trainer: the loop is a generator, ``fit`` drains it.

Order of operations of one optimizer step, kept below and nowhere else:
    1  fetch the window: all micro-batches of the step, so that its total weight is known
    2  forward and backward of each, weighted to the global mean; gradients meet at the last one
    3  clip by global norm, step, zero the gradients
    4  schedule, position, moving average
    5  log, evaluate, callbacks
    6  agree on stopping, yield
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import send_to_device, set_seed
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from .banner import banner, facts
from .callbacks import Best, Callback, MetricsFile, Progress, SaveCheckpoints, StopOnNaN
from .checkpoint import OptimizerForm, Saver, find_start
from .config import every_steps, to_yaml
from .control import Control
from .data import Layout, TrainData, evaluation_batches, is_stream, sized
from .ema import Average, NoAverage
from .errors import ConfigError, DataError, LaunchError, Problem
from .export import export_model
from .items import seed_of
from .launching import Launched, launch
from .leave import Stopped
from .meter import Meter, told
from .metrics import WeightedSums
from .optim import state_slots
from .rundir import RunDirectory
from .schedule import build_schedule, check_schedule, refuse_plateau, warmup_steps_of
from .strategies.buffers import kept
from .stream import StreamData, refuse_what_streams_cannot
from .task import Task, own_optimizer
from .tracking import watchers
from .train_config import TrainConfig


@dataclass(frozen=True, kw_only=True)
class StepInfo:
    """One optimizer step.

    Args:
        step: optimizer steps since the start, this one included; one that the fp16 scaler skipped counts.
        epoch: epochs done, as a fraction.
        samples: samples consumed by all ranks.
        loss: this rank's part of the global mean, on the device; summed over ranks it is the loss.
        grad_norm: global norm before clipping, on the device.
        metrics: plain numbers, on steps that are logged: loss, lr, grad_norm, samples_per_second, ...
        evaluation: ``eval/...`` numbers, on steps that were evaluated.
    """

    step: int
    epoch: float
    samples: int
    is_last: bool
    loss: Tensor
    grad_norm: Tensor
    metrics: dict[str, float] | None = None
    evaluation: dict[str, float] | None = None


class Trainer:
    """Trains a task as a config says, under the strategy that was launched.

    Args:
        task: what to learn.
        config: how long, with which batch, rate and so on.
        launched: the result of ``launch``; by default launched here, without files of its own.
        callbacks: called after the built-in ones.
        where: home of each config value, for messages.

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
        where: Mapping[str, str] | None = None,
    ) -> None:
        launched = launched or launch(config, where=where, optimizer_built_by=own_optimizer(task))
        self.task, self.config = task, config
        self.plan, self.accelerator, self.strategy = launched.plan, launched.accelerator, launched.strategy
        self.is_main = self.accelerator.is_main_process
        self.meter = Meter(self.accelerator.device)
        self.control = Control()
        self.directory = RunDirectory(config.output_dir, main=self.is_main)
        homes, folder = where or {}, self.directory.path / "checkpoints"
        start = find_start(config.resume, folder, self.control, home=homes.get("resume", "default"))
        home = homes.get("output_dir", "default")
        self.directory.claim(self.control, overwrite=config.overwrite, home=home, continues=start.continues)
        self._build([*watchers(config, homes), *callbacks], homes)
        self.saver = Saver(self, folder, start)
        notices = self.saver.resume()
        self._announce(notices)

    def _build(self, callbacks: Sequence[Callback], where: Mapping[str, str]) -> None:
        plan, config, task = self.plan, self.config, self.task
        check_schedule(plan)
        if config.deterministic:
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch refuses CUDA matmuls without it
        set_seed(config.seed, deterministic=config.deterministic)
        self.data = task.build_data()
        kind: type[TrainData | StreamData] = TrainData
        if is_stream(self.data.train):
            refuse_what_streams_cannot(config, where)
            kind = StreamData
        self.layout = Layout(
            rank=self.accelerator.process_index,
            world_size=plan.world_size,
            micro_batch_size=plan.micro_batch_size,
            accumulation_steps=plan.accumulation_steps,
        )
        self.train_data = kind(
            self.data.train,
            self.layout,
            seed=config.seed,
            collate=self.data.collate,
            augment=self.data.augment,
            weight_of=None if type(task).weight is Task.weight else task.weight,
            drop_last=config.drop_last,
            workers=config.workers,
            pin_memory=plan.device == "cuda",
        )
        self.steps_per_epoch = self.train_data.steps_per_epoch  # None for a stream
        by_epochs = (config.epochs or 0) * (self.steps_per_epoch or 0)
        self.total_steps = min(n for n in (by_epochs, config.max_steps) if n)
        self.plan = plan = dataclasses.replace(plan, warmup_steps=warmup_steps_of(plan, self.total_steps))
        set_seed(config.seed)  # the weights do not depend on what building the data drew
        model = task.build_model()
        if config.sync_batchnorm:
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
        self.parameters = sum(p.numel() for p in model.parameters())
        self.trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        if not self.trainable:
            raise LaunchError("the model has no trainable parameters")
        optimizer = task.build_optimizer(model, plan)
        self.optimizer_form = OptimizerForm.of(model, optimizer, saved=config.keep_last > 0)
        self.strategy.prepare(model, optimizer)
        self.strategy.verify()
        set_seed(seed_of(config.seed, self.accelerator.process_index))  # dropout differs between ranks
        self.schedule = self._schedule()
        self.average = NoAverage() if config.ema_decay is None else Average(self.strategy, config.ema_decay)
        self.step = self.samples = self.skipped_steps = self.skipped_in_a_row = 0
        self.stopped_by: int | None = None
        self.last_evaluation: dict[str, float] = {}
        self.eval_every = every_steps(config.eval_every, self.steps_per_epoch)
        self.callbacks: list[Callback] = [MetricsFile(), Progress(), StopOnNaN()]
        if config.best_metric is not None:
            self.callbacks.append(Best(config.best_metric, config.best_mode, config.early_stop_patience))
        self.save_every = every_steps(config.save_every, self.steps_per_epoch)
        self.callbacks.extend([*callbacks, SaveCheckpoints(self.save_every)])

    def _schedule(self) -> LRScheduler:
        own = self.task.build_schedule(self.strategy.optimizer, self.plan, self.total_steps)
        if own is None:
            return build_schedule(self.strategy.optimizer, self.plan, self.total_steps)
        built_by = f"{type(self.task).__name__}.build_schedule"
        refuse_plateau(own, built_by)
        if self.plan.home("schedule") != "default" or self.config.schedule is not None:
            rule = f"{built_by} builds a schedule already; remove one of the two"
            where = self.plan.home("schedule")
            raise ConfigError(Problem(where=where, key="schedule", value=self.plan.schedule, rule=rule))
        return own

    @property
    def model(self) -> nn.Module:
        """The prepared model: what the task's steps are called with."""
        return self.strategy.model

    # -- the loop ---------------------------------------------------------------------------------

    def fit(self) -> dict[str, float]:
        """Train to the end, export the model, and return the last evaluation. Every rank enters.

        Raises:
            Stopped: a signal asked to stop; the model was exported.
        """
        self.control.listen()
        for _ in self.steps():
            pass
        self.export(self.directory.path / "model")
        summary = self.meter.summary(self)
        self.directory.write("summary.json", json.dumps(summary, indent=2) + "\n")
        self.say(told(summary, self.directory.path / "model"))
        for callback in self.callbacks:
            callback.on_end(self, summary)
        self.control.close()
        if self.stopped_by is not None and self.stopped_by > 0:
            raise Stopped(self.stopped_by)
        return self.last_evaluation

    def steps(self) -> Iterator[StepInfo]:
        """Train, one optimizer step at a time. Every rank iterates in step with the others."""
        world, strategy, task = self.plan.world_size, self.strategy, self.task
        self.model.train()
        self.meter.start(self.samples)
        if self.train_data.skips:
            self.say(f"the stream keeps no state: {self.train_data.skips:,} samples are read over first")
        windows = self.train_data.windows(self.samples, self.total_steps - self.step)
        for window in self.meter.waiting("data", windows):
            total = self._total_weight(window)
            loss_sum = torch.zeros((), device=self.accelerator.device)
            for number, micro in enumerate(window.micros, 1):
                batch = send_to_device(micro.batch, self.accelerator.device, non_blocking=True)
                with (
                    kept(self.model, when=not micro.weight),
                    strategy.micro_step(boundary=number == len(window.micros)),
                ):
                    share = task.training_step(self.model, batch) * (micro.weight / total)
                    strategy.backward(share * world)
                loss_sum += share.detach()
            with self.meter.part("optimizer"):
                result = strategy.finish_step()

            self.step, self.samples = self.step + 1, window.end
            self.skipped_steps += result.skipped
            self.skipped_in_a_row = self.skipped_in_a_row + 1 if result.skipped else 0
            lr = float(self.schedule.get_last_lr()[0])
            if not result.skipped:
                self.schedule.step()
                self.average.update()
            info = self._after(window.samples, loss_sum, result.grad_norm, lr)
            yield info
            if info.is_last:
                return

    def _total_weight(self, window: Any) -> float:
        # Examples are counted by the plan of the data; tokens are known to each rank for its own part only.
        if self.train_data.weight_of is None:
            return float(window.samples)
        total = self.control.sum(sum(micro.weight for micro in window.micros))
        if total <= 0:
            raise DataError(f"step {self.step + 1}: no item of the global batch has a weight; check Task.weight")
        self.meter.count(total)
        return total

    def _after(self, samples: int, loss: Tensor, grad_norm: Tensor, lr: float) -> StepInfo:
        """Log, evaluate, call back, and agree on stopping."""
        self.meter.step(samples)
        wish = self.control.poll()
        if wish is not None:
            self.stopped_by = wish
        last = self.step >= self.total_steps or wish is not None
        metrics = evaluation = None
        epoch = self.train_data.epochs_at(self.samples)
        if last or self.step == 1 or self.step % self.config.log_every == 0:
            metrics = self._log(epoch, loss, grad_norm, lr)
        if self.data.evaluation is not None and (last or (self.eval_every and self.step % self.eval_every == 0)):
            evaluation = self.evaluate()
        info = StepInfo(
            step=self.step,
            epoch=epoch,
            samples=self.samples,
            is_last=last,
            loss=loss,
            grad_norm=grad_norm,
            metrics=metrics,
            evaluation=evaluation,
        )
        for callback in self.callbacks:
            if last or self.step % callback.every == 0:
                callback.on_step(self, info)
        return info

    def _log(self, epoch: float, loss: Tensor, grad_norm: Tensor, lr: float) -> dict[str, float]:
        # The only device sync of a step, and only on steps that are logged.
        whole = self.accelerator.reduce(loss, "sum").item()
        return {
            "step": self.step,
            "epoch": round(epoch, 6),
            "samples": self.samples,
            "loss": whole,
            "lr": lr,
            "grad_norm": float(grad_norm),
            "skipped_steps": self.skipped_steps,
            **self.meter.read(self.total_steps - self.step),
        }

    # -- around it --------------------------------------------------------------------------------

    def evaluate(self) -> dict[str, float]:
        """Metrics over the whole evaluation set, equal on every rank and world size. Every rank enters."""
        device = self.accelerator.device
        sums = WeightedSums({name: metric.to(device) for name, metric in self.task.build_metrics().items()})
        size = self.config.evaluation_batch_size or self.plan.micro_batch_size
        batches = evaluation_batches(
            self.data.evaluation, self.layout, batch_size=size, collate=self.data.collate, workers=self.config.workers
        )
        self.strategy.agree_buffers()
        self.model.eval()
        with self.meter.paused("evaluation"), self.average.applied(), torch.no_grad():
            for batch, counts in batches:
                batch = send_to_device(batch, device, non_blocking=True)
                sums.add(self.task.evaluation_step(self.model, batch), counts=counts)
            means = self.task.summarize(sums.reduce(self.accelerator))
        self.model.train()
        self.last_evaluation = {f"eval/{name}": value for name, value in means.items()}
        return self.last_evaluation

    def export(self, directory: str | Path) -> None:
        """Write the model (its moving average, if one is kept) as safetensors. Every rank enters."""
        self.strategy.agree_buffers()
        with self.meter.paused("saving"), self.average.applied():
            export_model(self.strategy, self.control, self.task, Path(directory))

    def save(self) -> None:
        """Begin a checkpoint of this step, written while training goes on. Every rank enters, between steps.

        Raises:
            CheckpointError: it cannot be written, and ``on_save_error`` is ``stop``.
        """
        with self.meter.paused("saving"):
            self.saver.save()

    def stop(self, reason: str = "") -> None:
        """End training at the next step boundary that all ranks agree on. Any rank may ask."""
        if reason:
            self.say(f"stopping: {reason}")
        self.control.stop()

    def close(self) -> None:
        """Give the engine back. Called by ``main``; a script of your own calls it last, on every rank."""
        self.strategy.close()

    def _announce(self, notices: Sequence[str]) -> None:
        plan = self.plan
        kind = type(self.model).__name__
        own = own_optimizer(self.task)
        self.facts = facts(
            plan,
            model_class=kind,
            distributed_type=str(self.accelerator.distributed_type).rsplit(".", 1)[-1],
            seed=self.config.seed,
            train_samples=self.train_data.size,
            evaluation_samples=_evaluation_size(self.data.evaluation),
            steps_per_epoch=self.steps_per_epoch,
            total_steps=self.total_steps,
            parameters=self.parameters,
            trainable_parameters=self.trainable,
            optimizer=plan.optimizer if own is None else f"{type(self.strategy.optimizer).__name__} of {own}",
            **self.strategy.costs(state_slots(self.strategy.optimizer)),
            output_dir=str(self.directory.path),
            checkpoint_bytes=self.saver.bytes,
            notices=[*plan.notices, *notices],
        )
        self.directory.write("config.yaml", to_yaml(self.config))
        self.directory.write("plan.json", json.dumps(self.facts, indent=2, default=str) + "\n")
        self.say(banner(self.facts))

    def say(self, text: str) -> None:
        """One line to the terminal and to log.txt, from the main process."""
        if self.is_main:
            print(text, flush=True)
            self.directory.line(text)


def _evaluation_size(dataset: Any) -> int | None:
    """Samples to measure on: 0 without any, None for a stream."""
    if dataset is None:
        return 0
    return None if is_stream(dataset) else sized(dataset, "evaluation")
