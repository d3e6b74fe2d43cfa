"""The parts of a trainer, built in the order and under the seeds that every layout shares."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import set_seed
from torch import nn

from ..checkpoint.export import set_config_dtype
from ..config.schedules import PLATEAU
from ..data.batches import Layout, TrainData, is_stream, sized
from ..data.indexed import IndexedData
from ..distributed.agreement import Agreement
from ..errors import ConfigError, DataError, LaunchError, Origin, Problem
from ..optim.groups import check_settings_run, describe_optimizer, describe_schedule
from ..optim.optimizers import MatricesAndOthers
from ..optim.schedule import build_schedule
from ..strategies.base import compute_in
from ..task import Data, Task, own_optimizer, own_schedule
from ..text import listed
from .normalize import (
    have_hooks_see_full_precision,
    make_contiguous,
    refuse_what_would_be_lost,
    unwrap_compiled,
)
from .returned import data_of, model_of, optimizer_by

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    from ..config.train_config import TrainConfig
    from ..plan import Plan


def build_data(
    task: Task,
    config: TrainConfig,
    layout: Layout,
    origins: Mapping[str, Origin],
    *,
    pin_memory: bool,
) -> tuple[Data, TrainData]:
    """Build the task's data sets, and the windows of the training one."""
    if config.deterministic:
        os.environ.setdefault(
            "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
        )  # torch refuses CUDA matmuls without it
        # Every buffer that is written anyway would be filled with NaN first.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    set_seed(config.seed, deterministic=config.deterministic)
    data = data_of(task)
    evaluation_size(data.evaluation)  # an empty one is refused now, and not at the first evaluation
    kind: type[TrainData] = IndexedData
    if is_stream(data.train):
        if data.evaluation is data.train and hasattr(data.train, "state_dict"):
            raise DataError(
                "Data.train and Data.evaluation are one stream, and its position serves one of them only: "
                "give evaluation a stream of its own (copy.deepcopy)"
            )
        from ..data.stream import StreamData, refuse_what_streams_cannot

        refuse_what_streams_cannot(config, origins)
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


def share_cores(agreement: Agreement) -> str:
    """Give this process its part of the cores, for an optimizer on the CPU of a GPU job; returns a
    notice.

    torchrun and accelerate launch leave it one thread (OMP_NUM_THREADS=1), the DeepSpeed launcher
    all cores to each process of the machine. Who may run on which cores is asked, since Slurm gives
    each process its own. Collective.
    """
    mine = socket.gethostname(), sorted(os.sched_getaffinity(0))
    processes, cores = agreement.gather(mine).count(mine), len(mine[1])
    threads = max(1, cores // processes)
    torch.set_num_threads(threads)
    return f"the optimizer runs on the CPU: {threads} threads in each process (of {cores} cores, for {processes})"


def build_model(task: Task, config: TrainConfig, plan: Plan) -> tuple[nn.Module, list[str]]:
    """Build the task's model, as every strategy can take it: trainable weights in full precision,
    each in one piece.

    Returns:
        The model, and a notice for each thing that was changed.

    Raises:
        LaunchError: it is no model, nothing in it learns, or it brings what a strategy would lose.
    """
    set_seed(config.seed)  # the weights do not depend on what building the data drew
    model = unwrap_compiled(model_of(task))
    if config.sync_batchnorm:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # type: ignore[no-untyped-call]
    refuse_what_would_be_lost(model, world_size=plan.world_size)
    have_hooks_see_full_precision(model)
    notices = [*_widen(model, plan), *make_contiguous(model)]
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise LaunchError("the model has no trainable parameters")
    return model, notices


def _widen(model: nn.Module, plan: Plan) -> list[str]:
    """Cast what learns to float32, as the plan says: updates smaller than a 16-bit weight's last
    digit would be lost.

    Frozen weights keep their dtype where layers compute in mixed precision anyway.
    """
    computed_in = [p for p in model.parameters() if p.requires_grad or plan.mixed_precision == "no"]
    narrow = [p for p in computed_in if p.is_floating_point() and p.dtype != torch.float32]
    if not narrow:
        return []
    dtypes = sorted({str(parameter.dtype).removeprefix("torch.") for parameter in narrow})
    for parameter in narrow:
        parameter.data = parameter.data.float()
    for module in model.modules():
        for key, buffer in module._buffers.items():
            if buffer is not None and buffer.dtype in (torch.bfloat16, torch.float16):
                module._buffers[key] = buffer.float()
    set_config_dtype(getattr(model, "config", None), torch.float32)
    if plan.mixed_precision == "no":
        compute_in(model, torch.float32)  # inputs that were meant for the narrow weights
    return [f"{len(narrow)} parameters of {', '.join(dtypes)} are kept in float32"]


def count_parameters(model: nn.Module) -> int:
    """Count the elements of all parameters; of a quantized one, several in a byte, those that it
    stands for.
    """
    return sum(getattr(one, "quant_state", one).shape.numel() for one in model.parameters())


def lone_example_notices(model: nn.Module, data: TrainData, total_steps: int) -> list[str]:
    """Say where the short last step of an epoch gives a rank one example, which ``BatchNorm1d`` may
    not take.
    """
    held = held_in_evaluation(model)
    norms = [
        name
        for name, one in model.named_modules()
        if isinstance(one, nn.BatchNorm1d) and one not in held
    ]
    reached = data.steps_per_epoch is not None and total_steps >= data.steps_per_epoch
    if (
        not norms
        or not reached
        or data.size is None
        or data.drop_last
        or data.layout.micro_batch_size == 1
    ):
        return []
    layout = data.layout
    block = data.size % layout.global_batch_size % (layout.micro_batch_size * layout.world_size)
    ends = [block * rank // layout.world_size for rank in range(layout.world_size + 1)]
    sizes = [end - begin for begin, end in pairwise(ends)]
    if 1 not in sizes:
        return []
    return [
        f"the last step of an epoch gives rank {sizes.index(1)} one example, which {listed(norms)} (BatchNorm1d) "
        "cannot take as one row while it trains: set drop_last: true, or another batch size"
    ]


def held_in_evaluation(model: nn.Module) -> list[nn.Module]:
    """List the parts that build_model put into evaluation mode (a frozen BatchNorm), and that stay
    there.

    A model that is in evaluation mode as a whole, as ``from_pretrained`` leaves it, is trained as a
    whole.
    """
    return [module for module in model.modules() if model.training and not module.training]


def optimizer_of(
    task: Task, config: TrainConfig, model: nn.Module, plan: Plan
) -> tuple[Optimizer, dict[str, Any], list[str]]:
    """Build the task's optimizer, by default the plan's; what it does not hold is frozen.

    Returns:
        The optimizer, what is told of it, and a notice where parameters were frozen.

    Raises:
        ConfigError: the task has one of its own, and a launch file another, or the config says what
            it is not. ``launch`` says so of a file as well where it is told of the task; a script
            that launches by itself need not tell it.
        LaunchError: it is no optimizer, or holds a parameter that is not the model's: nobody would
            exchange its gradient, or save it.
    """
    built_by, origin = own_optimizer(task), plan.origin("optimizer")
    if built_by is not None and origin.source in plan.files:
        rule = f"{built_by} builds the optimizer already; remove one of the two"
        raise ConfigError(
            Problem(origin=origin.named("optimizer"), value=plan.optimizer, rule=rule)
        )
    optimizer = optimizer_by(task, model, plan)
    if built_by is not None:
        check_settings_run(config, plan, optimizer, built_by)
    own = {id(parameter) for parameter in model.parameters()}
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    for number, group in enumerate(optimizer.param_groups):
        for parameter in group["params"]:
            if id(parameter) not in own:
                raise LaunchError(
                    f"parameter group {number} of the optimizer holds a parameter of shape {tuple(parameter.shape)} "
                    "that is not the model's: make it an attribute of the module that build_model returns"
                )
    # Engines lay each group out as one vector; one without anything that learns would be empty.
    optimizer.param_groups[:] = [
        g for g in optimizer.param_groups if any(p.requires_grad for p in g["params"])
    ]
    left_out = [
        name for name, one in model.named_parameters() if one.requires_grad and id(one) not in held
    ]
    for name in left_out:
        model.get_parameter(name).requires_grad_(False)
    if not optimizer.param_groups:
        raise LaunchError("the optimizer holds no parameter that learns")
    notices = [optimizer.notice] if isinstance(optimizer, MatricesAndOthers) else []
    told = describe_optimizer(optimizer, plan, built_by)
    return (
        optimizer,
        told,
        [*notices, *([f"not in the optimizer, so frozen: {listed(left_out)}"] if left_out else [])],
    )


def schedule_of(
    task: Task, config: TrainConfig, plan: Plan, optimizer: Optimizer, total_steps: int
) -> tuple[LRScheduler, dict[str, Any]]:
    """Build the schedule that the task gives, else the plan's; return it, and what is told of it."""
    own = task.build_schedule(optimizer, plan, total_steps)
    if own is None:
        schedule = build_schedule(optimizer, plan, total_steps)
        return schedule, describe_schedule(schedule, None)
    built_by = f"{type(task).__name__}.build_schedule"
    if type(own).__name__ == PLATEAU:
        rule = "follows a metric and not the optimizer steps; not offered"
        raise ConfigError(Problem(origin=Origin(built_by), value=PLATEAU, rule=rule))
    origin = plan.origin("schedule")
    if config.schedule is not None or origin.source in plan.files:
        rule = f"{built_by} builds a schedule already; remove one of the two"
        raise ConfigError(Problem(origin=origin.named("schedule"), value=plan.schedule, rule=rule))
    return own, describe_schedule(own, own_schedule(task))


def evaluation_size(dataset: Any) -> int | None:
    """Count the samples to measure on: 0 without any, None for a stream."""
    if dataset is None:
        return 0
    return None if is_stream(dataset) else sized(dataset, "evaluation")
