"""The parts of a trainer, built in the order and under the seeds that every layout shares."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelerate.utils import set_seed
from torch import nn

from .banner import facts
from .callbacks import Best, Callback, MetricsFile, Progress, SaveCheckpoints, StopOnNaN
from .config import every_steps
from .data import Layout, TrainData, is_stream, sized
from .errors import ConfigError, LaunchError, Problem
from .optim import state_slots
from .schedule import build_schedule, refuse_plateau
from .stream import StreamData, refuse_what_streams_cannot
from .task import Data, Task, own_optimizer

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from .launching import Plan
    from .loop import Trainer
    from .train_config import TrainConfig


def build_data(
    task: Task, config: TrainConfig, layout: Layout, where: Mapping[str, str], *, pin_memory: bool
) -> tuple[Data, TrainData | StreamData]:
    """The task's data sets, and the windows of the training one."""
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch refuses CUDA matmuls without it
    set_seed(config.seed, deterministic=config.deterministic)
    data = task.build_data()
    kind: type[TrainData | StreamData] = TrainData
    if is_stream(data.train):
        refuse_what_streams_cannot(config, where)
        kind = StreamData
    windows = kind(
        data.train,
        layout,
        seed=config.seed,
        collate=data.collate,
        augment=data.augment,
        weight_of=None if type(task).weight is Task.weight else task.weight,
        drop_last=config.drop_last,
        workers=config.workers,
        pin_memory=pin_memory,
    )
    return data, windows


def build_model(task: Task, config: TrainConfig) -> nn.Module:
    """The task's model, before a strategy takes it."""
    set_seed(config.seed)  # the weights do not depend on what building the data drew
    model = task.build_model()
    if config.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise LaunchError("the model has no trainable parameters")
    return model


def schedule_of(task: Task, config: TrainConfig, plan: Plan, optimizer: Optimizer, total_steps: int) -> LRScheduler:
    """The schedule that the task builds, else the plan's."""
    own = task.build_schedule(optimizer, plan, total_steps)
    if own is None:
        return build_schedule(optimizer, plan, total_steps)
    built_by = f"{type(task).__name__}.build_schedule"
    refuse_plateau(own, built_by)
    if plan.home("schedule") != "default" or config.schedule is not None:
        rule = f"{built_by} builds a schedule already; remove one of the two"
        raise ConfigError(Problem(where=plan.home("schedule"), key="schedule", value=plan.schedule, rule=rule))
    return own


def callbacks_of(config: TrainConfig, steps_per_epoch: int | None, others: Sequence[Callback]) -> list[Callback]:
    """In the order of their calls: the built-in ones, the others, then checkpoints, which keep what those hold."""
    callbacks: list[Callback] = [MetricsFile(), Progress(), StopOnNaN()]
    if config.best_metric is not None:
        callbacks.append(Best(config.best_metric, config.best_mode, config.early_stop_patience))
    return [*callbacks, *others, SaveCheckpoints(every_steps(config.save_every, steps_per_epoch))]


def facts_of(trainer: Trainer, notices: Sequence[str]) -> dict[str, Any]:
    """What plan.json and the banner say of a trainer that is ready to start."""
    plan, optimizer, own = trainer.plan, trainer.strategy.optimizer, own_optimizer(trainer.task)
    return facts(
        plan,
        model_class=type(trainer.model).__name__,
        distributed_type=str(trainer.accelerator.distributed_type).rsplit(".", 1)[-1],
        seed=trainer.config.seed,
        train_samples=trainer.train_data.size,
        evaluation_samples=_evaluation_size(trainer.data.evaluation),
        steps_per_epoch=trainer.steps_per_epoch,
        total_steps=trainer.total_steps,
        parameters=trainer.parameters,
        trainable_parameters=trainer.trainable,
        optimizer=plan.optimizer if own is None else f"{type(optimizer).__name__} of {own}",
        **trainer.strategy.costs(state_slots(optimizer)),
        output_dir=str(trainer.directory.path),
        checkpoint_bytes=trainer.saver.bytes,
        notices=[*plan.notices, *notices],
    )


def _evaluation_size(dataset: Any) -> int | None:
    """Samples to measure on: 0 without any, None for a stream."""
    if dataset is None:
        return 0
    return None if is_stream(dataset) else sized(dataset, "evaluation")
