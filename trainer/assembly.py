"""The parts of a trainer, built in the order and under the seeds that every layout shares."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from accelerate.utils import set_seed
from torch import nn

from .banner import facts
from .callbacks import Best, Callback, MetricsFile, Progress, SaveCheckpoints, StopOnNaN
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
    from .train_config import TrainConfig
    from .train_state import TrainState


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


def optimizer_of(task: Task, model: nn.Module, plan: Plan) -> Optimizer:
    """The optimizer that the task builds, by default the plan's.

    Raises:
        ConfigError: the task has one of its own, and a launch file another. ``launch`` says so as well where it is told
            of the task; a script that launches by itself need not tell it.
    """
    built_by, home = own_optimizer(task), plan.home("optimizer")
    if built_by is not None and home.startswith(plan.files):
        rule = f"{built_by} builds the optimizer already; remove one of the two"
        where = home.partition(" (")[0]  # it reads "file:line (key)"
        raise ConfigError(Problem(where=where, key="optimizer", value=plan.optimizer, rule=rule))
    return task.build_optimizer(model, plan)


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


def callbacks_of(config: TrainConfig, others: Sequence[Callback]) -> list[Callback]:
    """In the order of their calls: the built-in ones, the others, then checkpoints, which keep what those hold."""
    callbacks: list[Callback] = [MetricsFile(), Progress(), StopOnNaN()]
    if config.best_metric is not None:
        callbacks.append(Best(config.best_metric, config.best_mode, config.early_stop_patience))
    return [*callbacks, *others, SaveCheckpoints()]


def facts_of(run: TrainState, notices: Sequence[str]) -> dict[str, Any]:
    """What plan.json and the banner say of a training that is ready to start."""
    plan, optimizer, own = run.plan, run.strategy.optimizer, own_optimizer(run.task)
    return facts(
        plan,
        model_class=type(run.model).__name__,
        distributed_type=str(run.accelerator.distributed_type).rsplit(".", 1)[-1],
        seed=run.config.seed,
        train_samples=run.train_data.size,
        evaluation_samples=_evaluation_size(run.data.evaluation),
        steps_per_epoch=run.steps_per_epoch,
        total_steps=run.total_steps,
        parameters=run.parameters,
        trainable_parameters=run.trainable,
        optimizer=plan.optimizer if own is None else f"{type(optimizer).__name__} of {own}",
        **run.strategy.costs(state_slots(optimizer)),
        output_dir=str(run.directory.path),
        checkpoint_bytes=run.saver.bytes,
        notices=[*plan.notices, *notices],
    )


def _evaluation_size(dataset: Any) -> int | None:
    """Samples to measure on: 0 without any, None for a stream."""
    if dataset is None:
        return 0
    return None if is_stream(dataset) else sized(dataset, "evaluation")
