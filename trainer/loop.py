"""The trainer: the loop is a generator, ``fit`` drains it.

The order of operations of one optimizer step is written beside the lines of ``Trainer.steps``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from functools import cache, cached_property, reduce
from signal import Signals
from typing import Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor

from .callbacks.base import Callback, StepInfo
from .callbacks.configured import configured_callbacks
from .config.train_config import every_steps
from .data.batches import Window
from .data.evaluation import EvaluationBatches
from .distributed.exit import Stopped
from .errors import DataError, Origin
from .faults.waits import waits_outside
from .metrics import Layout, WeightedSums, agreed
from .optim.groups import group_names, logged_rates
from .reporting.attempts import Attempts
from .reporting.meter import summary_text
from .state import TrainState
from .strategies.buffers import BuffersBefore, restored_buffers
from .strategies.in_place import refuse_other_parameters
from .strategies.tensors import unwrapped
from .task import OneBackward, Task, refuse_independent, split_loss, weighted


class Trainer(TrainState):
    """Trains a task as a config says, under the strategy that was launched.

    It is a ``TrainState``, made of the same arguments, with the loop.

    Args:
        task: what to learn.
        config: how long, with which batch, rate and so on.
        launched: the result of ``launch``; by default launched here, without files of its own.
        callbacks: called after the built-in ones; only saving comes after them.
        origins: of the config's values, by key, for messages.

    Raises:
        ConfigError, LaunchError, DataError: before the first step, on every rank.
    """

    callbacks: list[Callback]
    stopped_by: int | None = (
        None  # the signal of a stop that was agreed on; 0 where the code asked for it
    )

    def _all_callbacks(
        self, added: Sequence[Callback], origins: Mapping[str, Origin]
    ) -> list[Callback]:
        return configured_callbacks(self.config, added, origins)

    @cached_property
    def _evaluation_batches(self) -> EvaluationBatches:
        return EvaluationBatches(
            self.data.evaluation,
            self.layout,
            batch_size=self.config.evaluation_batch_size or self.plan.micro_batch_size,
            collate=self.data.collate,
            workers=self.config.workers,
            pin_memory=self.plan.device == "cuda",
            gather=self.agreement.gather,
        )

    # -- the loop ---------------------------------------------------------------------------------

    def fit(self) -> dict[str, float]:
        """Train to the end, export the model, and return the last evaluation. Collective: call on
        every rank.

        Raises:
            Stopped: a signal asked to stop; the model was exported.
        """
        if self.finished:
            return self.last_evaluation
        with self.agreement.listening(), self._watched(self._position, log=self._log_from_any):
            for _ in self.steps():
                pass
            self.export(self.directory.path / "model")
            summary = self._summary()
            self.meter.memory.enter("ending")
            self.directory.write_json("summary.json", summary)
            self.say(summary_text(summary, self.directory.path / "model"))
            with waits_outside("the end of a callback"):  # uploads, trackers
                for callback in self.callbacks:
                    callback.on_end(self, summary)
            self.agreement.close()
        self.directory.release()
        if self.stopped_by is not None and self.stopped_by > 0:
            raise Stopped(self.stopped_by, step=self.step, total_steps=self.total_steps)
        return self.last_evaluation

    def steps(self) -> Iterator[StepInfo]:
        """Train, one optimizer step at a time. Collective: iterate on every rank, in step with the
        others.
        """
        world, strategy, task = self.plan.data_parallel_size, self.strategy, self.task
        eval_every = every_steps(self.config.eval_every, self.steps_per_epoch)
        strategy.on_nan = self.config.on_nan
        buffers = BuffersBefore(self.model, active=self.config.on_nan == "skip")
        one_backward, began_at = OneBackward(), self.step
        self._reported: Layout = {}  # beside the loss, by any rank
        self.attempts = Attempts(self.directory, self.meter, self.step)
        self.train_mode()
        self.meter.start(self.samples)
        # A signal came before it, or in it: the callbacks see the step again, with its evaluation.
        if (
            self.evaluation_owed
            and self.data.evaluation is not None
            and (made_up := self.evaluate())
        ):
            nothing = torch.zeros(())
            self._tell(last=False, loss=nothing, grad_norm=nothing, evaluation=made_up)
        if self.stopped_by is not None:
            return self._evaluation_batches.close()
        # 1 Fetch the window: all micro-batches of the step, and ask the ranks for its total weight.
        for window in self.meter.waiting("data", self.windows()):
            if not unwrapped(self.model).training:  # a callback has evaluated
                self.train_mode()
            total = self._total_weight(window)
            reported, shares, counted = WeightedSums(), [], []
            buffers.take()
            # 2 Forward and backward of each, weighted to the global mean; gradients meet at the
            # last one.
            for number, micro in enumerate(window.micros, 1):
                batch = self._on_device(micro.batch)
                unseen = nullcontext() if micro.weight else restored_buffers(self.model)
                with (
                    one_backward,
                    unseen,
                    strategy.micro_step(boundary=number == len(window.micros)),
                ):
                    mean, values = split_loss(task.training_step(self.model, batch))
                    if self.step == began_at:
                        refuse_independent(mean)
                    part = (
                        micro.weight / total()
                    )  # known by now: asked before the first forward pass
                    strategy.backward(_times(mean, part * world))
                shares.append(
                    mean.detach() * part
                )  # a tensor of its own: a compiled step may write over its loss
                if micro.counts:
                    counted.append(shares[-1])
                if values:
                    reported.add(weighted((mean, values), micro.weight), counts=micro.counts)
            loss = (
                reduce(torch.add, counted)
                if counted
                else torch.zeros((), device=self.accelerator.device)
            )
            # 3 Clip by global norm, step, zero the gradients.
            with self.meter.part("optimizer"):
                outcome = strategy.finish_step()
                buffers.put_back(outcome)
            # 4 Move on: position, schedule, moving average, a save in flight.
            rates = self.schedule.get_last_lr()
            self.advance(window, skipped=outcome.skipped)
            self.meter.step(window.samples)
            self.attempts.note(self.step, now=_is_due(self.step, self.save_every))
            # 5 Agree on stopping.
            self.stopped_by = self.agreement.poll(strategy.fingerprint)
            last = self.step >= self.total_steps or self.stopped_by is not None
            # 6 Log, the only wait for the device; 7 evaluate; 8 callbacks, of which the last one
            # saves.
            logs = last or self.step == 1 or self.step % self.config.log_every == 0
            metrics = self._log(loss, reported, outcome.grad_norm, rates) if logs else None
            # A run that a signal ends has no time for the second: what it is sure of is its
            # checkpoint.
            due = self.data.evaluation is not None and (last or _is_due(self.step, eval_every))
            evaluation = (self.evaluate() or None) if due and not self.stopped_by else None
            self.evaluation_owed = (
                due and bool(self.stopped_by) and not evaluation and _is_due(self.step, eval_every)
            )
            if self.stopped_by and not last:
                last, metrics = True, metrics or self._log(loss, reported, outcome.grad_norm, rates)
            more = {"shares": shares, "metrics": metrics, "evaluation": evaluation}
            yield self._tell(last=last, loss=loss, grad_norm=outcome.grad_norm, **more)
            if last:
                return self._evaluation_batches.close()

    def _tell(self, *, last: bool, **more: Any) -> StepInfo:
        """Call the callbacks with this step. Collective: call on every rank."""
        epoch = self.train_data.epochs_at(self.samples)
        info = StepInfo(step=self.step, epoch=epoch, samples=self.samples, is_last=last, **more)
        for callback in self.callbacks:
            if last or self.step % callback.every == 0:
                callback.on_step(self, info)
        return info

    def _on_device(self, batch: Any) -> Any:
        """Send a batch to where the model is, in containers of its own: a task may take labels out
        of them.

        On a CPU its tensors are there, and looking for them costs as much as a layer.
        """
        device = self.accelerator.device
        if device.type == "cpu":
            return copy(batch) if isinstance(batch, dict | list) else batch
        return send_to_device(batch, device, non_blocking=True)

    def _total_weight(self, window: Window) -> Callable[[], float]:
        """Ask for the total weight; the result waits for it. Collective: call on every rank."""
        # Examples are counted by the plan of the data; tokens are known to each rank for its own
        # part only.
        if self.train_data.weight_of is None:
            return lambda: float(window.samples)
        summed = self.agreement.begin_sum(window.weight)

        @cache
        def read() -> float:
            total = summed()
            if total <= 0:
                raise DataError(
                    f"step {self.step + 1}: no item of the global batch has a weight; check Task.weight"
                )
            if self.task.counts_tokens:
                self.meter.count(total)
            return total

        return read

    def _log(
        self, loss: Tensor, reported: WeightedSums, grad_norm: Tensor, rates: Sequence[Any]
    ) -> dict[str, float]:
        """Return the global values of this step. Collective: call on every rank."""
        refuse_other_parameters(self.strategy)
        # Which names there are is told anew only where some rank's are others than those that all
        # knew last.
        others = loss.new_full((), float(reported.layout() != self._reported))
        whole, others = self.accelerator.reduce(torch.stack([loss, others]), "sum").tolist()
        if others:
            self._reported = agreed(self.agreement.gather(reported.layout()))
        own = {
            "step": self.step,
            "epoch": round(self.train_data.epochs_at(self.samples), 6),
            "samples": self.samples,
            "loss": whole,
            **logged_rates(rates, group_names(self.told["optimizer_groups"])),
            "grad_norm": float(grad_norm),
            "skipped_steps": self.skipped_steps,
            **self.meter.read(self.total_steps - self.step),
        }
        more = reported.reduce(self.accelerator, self._reported)
        more.pop("loss", None)
        if taken := sorted(own.keys() & more.keys()):
            raise DataError(
                f"training_step reports {taken[0]!r}, a name of the trainer's own; give it another one"
            )
        return own | more

    def _summary(self) -> dict[str, Any]:
        """Return what summary.json holds. Collective: call on every rank."""
        # Two operations a parameter and token forward, as many for the activations' gradients, and
        # for the weights'.
        operations = 4 * self.parameters + 2 * self.trainable
        compute = self.plan.precision["compute"]
        return {
            "steps": self.step,
            "total_steps": self.total_steps,
            "samples": self.samples,
            "stopped_by": Signals(self.stopped_by).name
            if self.stopped_by
            else self.stop_reason or None,
            **self.meter.summary(self.agreement.gather, operations, self.plan.world_size, compute),
            "attempts": self.attempts.account(self.step),
            "evaluation": self.last_evaluation,
            **{
                key: value
                for callback in self.callbacks
                for key, value in callback.summary().items()
            },
            "machine": self.facts["machine"],
        }

    # -- around it --------------------------------------------------------------------------------

    def _position(self) -> tuple[int, str, int]:
        """Return the step, what goes on, and a number that grows as the run goes on. Any thread may
        call it.
        """
        return self.step, *self.meter.position

    def _log_from_any(self, text: str) -> None:
        self.directory.line(text, from_any=True)

    def evaluate(self) -> dict[str, float]:
        """Measure on the whole evaluation set; every world size gives the same. Collective: call on
        every rank.

        A signal ends it between two batches: nothing is returned then, and the step before is the
        last one.
        """
        device, task = self.accelerator.device, type(self.task)
        # The loader knows how many examples a batch has; the first tensor of a batch need not begin
        # with them.
        counts_examples = (
            task.evaluation_step is Task.evaluation_step and task.weight is Task.weight
        )
        sums = WeightedSums(
            {name: metric.to(device) for name, metric in self.task.build_metrics().items()}
        )
        means: Mapping[str, Any] = {}
        stopped_by = 0
        self.strategy.sync_buffers()
        self.model.eval()
        with self.meter.paused("evaluation"), self.average.applied(), torch.no_grad():
            for batch, examples in self._evaluation_batches:
                batch = self._on_device(batch)
                if counts_examples:
                    values: Mapping[str, Any] = weighted(
                        self.task.training_step(self.model, batch), float(examples)
                    )
                else:
                    values = self.task.evaluation_step(self.model, batch)
                sums.add(values, counts=examples > 0)
                if not self.stopped_by and (stopped_by := self.agreement.poll_evaluation()):
                    break
            else:
                means = self.task.summarize(
                    sums.reduce(self.accelerator, agreed(self.agreement.gather(sums.layout())))
                )
        self.train_mode()
        self.strategy.settle()
        if stopped_by:
            self.stopped_by = stopped_by
            return {}
        self.last_evaluation = {f"eval/{name}": float(value) for name, value in means.items()}
        return self.last_evaluation


def _times(loss: Tensor, factor: float) -> Tensor:
    """Multiply, but by 1: that would be a kernel, and one more in the backward pass."""
    return loss if factor == 1.0 else loss * factor


def _is_due(step: int, every: int | None) -> bool:
    return every is not None and step % every == 0
