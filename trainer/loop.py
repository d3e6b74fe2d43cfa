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

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate.utils import send_to_device
from torch import Tensor

from .assembly import callbacks_of
from .callbacks import Callback
from .config import every_steps
from .data import Window, evaluation_batches
from .errors import DataError
from .launching import Launched
from .leave import Stopped
from .meter import Meter, told
from .metrics import WeightedSums
from .strategies.buffers import kept
from .task import Task
from .tracking import watchers
from .train_config import TrainConfig
from .train_state import TrainState


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


class Trainer(TrainState):
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
        called = callbacks_of(config, [*watchers(config, where or {}), *callbacks])
        super().__init__(task, config, launched, callbacks=called, where=where)
        self.meter = Meter(self.accelerator.device)
        self.eval_every = every_steps(config.eval_every, self.steps_per_epoch)
        self.stopped_by: int | None = None

    # -- the loop ---------------------------------------------------------------------------------

    def fit(self) -> dict[str, float]:
        """Train to the end, export the model, and return the last evaluation. Every rank enters.

        Raises:
            Stopped: a signal asked to stop; the model was exported.
        """
        if self.saver.finished:
            return self.last_evaluation
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
        self.directory.release()
        if self.stopped_by is not None and self.stopped_by > 0:
            raise Stopped(self.stopped_by)
        return self.last_evaluation

    def steps(self) -> Iterator[StepInfo]:
        """Train, one optimizer step at a time. Every rank iterates in step with the others."""
        world, strategy, task = self.plan.world_size, self.strategy, self.task
        self.model.train()
        self.meter.start(self.samples)
        for window in self.meter.waiting("data", self.windows()):
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

            lr = float(self.schedule.get_last_lr()[0])
            self.advance(window, skipped=result.skipped)
            info = self._after(window.samples, loss_sum, result.grad_norm, lr)
            yield info
            if info.is_last:
                return

    def _total_weight(self, window: Window) -> float:
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
        with self.meter.paused("saving"):
            super().export(directory)

    def save(self) -> None:
        """Begin a checkpoint of this step, written while training goes on. Every rank enters, between steps.

        Raises:
            CheckpointError: it cannot be written, and ``on_save_error`` is ``stop``.
        """
        with self.meter.paused("saving"):
            super().save()

    def stop(self, reason: str = "") -> None:
        """End training at the next step boundary that all ranks agree on. Any rank may ask."""
        if reason:
            self.say(f"stopping: {reason}")
        self.control.stop()
