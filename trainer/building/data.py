"""The data of a run: the task's data sets, and the training set cut into windows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from accelerate.utils import set_seed

from ..data.batches import Layout, TrainData, size_of
from ..data.indexed import IndexedData
from ..data.samples import Sampled, SampledSet
from ..errors import Origin, origin_of
from ..evaluator import MeasuredSet, measured_sets
from ..run import Folder, Read, Sets, Setup
from ..task import Data, Task
from .length import configured_interval, length_of
from .returned import returned

if TYPE_CHECKING:
    from ..config.train_config import TrainConfig


def read_data(setup: Setup, folder: Folder, *, saves: bool) -> Read:
    """Build the data sets, which give the length of the run. Collective: call on every rank."""
    task, config, plan = setup.task, setup.config, setup.plan
    layout = Layout(
        # Processes that share rows have the same batches.
        rank=setup.strategy.accelerator.process_index // plan.context_parallel,
        world_size=plan.world_size // plan.context_parallel,
        micro_batch_size=plan.micro_batch_size,
        accumulation_steps=plan.accumulation_steps,
        whole_micro_batches=setup.strategy.sums_exactly,
    )
    task.begin(plan)
    pin_memory = plan.device == "cuda"
    data, train = build_data(task, config, layout, plan.origins, pin_memory=pin_memory)
    if train.size is not None and hasattr(data.train, "set_epoch"):
        setup.note("Data.train.set_epoch is never called: trainer.now().epoch tells the epoch")

    length = length_of(setup, folder, train)
    train.items.total_steps = length.total_steps
    setup.note(*train.notices(length.total_steps))
    measured = measured_sets(
        task,
        data,
        layout,
        batch_size=config.evaluation_batch_size or plan.micro_batch_size,
        eval_every=configured_interval(setup, "eval_every", train),
        steps_per_epoch=train.steps_per_epoch,
        workers=config.workers,
        pin_memory=pin_memory,
        gather=setup.agreement.gather,
    )
    return Read(
        setup=setup._replace(plan=plan.with_length(length.total_steps)),
        folder=folder,
        length=length,
        sets=Sets(
            data=data,
            train_data=train,
            sampled=_sampled(setup, data, train, measured.values(), saves=saves),
            evaluation_sets=measured,
        ),
    )


def build_data(
    task: Task,
    config: TrainConfig,
    layout: Layout,
    origins: Mapping[str, Origin],
    *,
    pin_memory: bool,
) -> tuple[Data, TrainData]:
    """Build the task's data sets, and the windows of the training set."""
    if config.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for torch's matrix products
        # The flash-attn packages do not know torch's switch. transformers reads this variable.
        os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"
        # Otherwise every buffer that is written anyway would be filled with NaN first.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    set_seed(config.seed, deterministic=config.deterministic)
    data = returned(task.build_data(), Data, task, "build_data")

    kind: Callable[..., TrainData] = IndexedData
    if size_of(data.train, "Data.train") is None:
        from ..data.stream import StreamData

        kind = StreamData
        if config.workers > 1:
            rule = "a stream is read in order, by one process a rank. Use 0 or 1"
            raise origin_of(origins, "workers").error(rule, config.workers)

    return data, kind(
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


def _sampled(
    setup: Setup, data: Data, train: TrainData, measured: Iterable[MeasuredSet], *, saves: bool
) -> Sampled:
    """Read some samples of each data set, which ranks compare, and checkpoints keep."""
    sets = []
    if setup.agreement.distributed or saves:
        sets.append(SampledSet("Data.train", train, data.version))
    if setup.agreement.distributed:
        batches = [of_set.batches for of_set in measured]
        sets += [SampledSet(b.name, b) for b in batches if b.dataset is not data.train]
    return Sampled(sets, setup.agreement.gather)
