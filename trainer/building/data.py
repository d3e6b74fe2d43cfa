"""The data of a run: the task's data sets, and the training set cut into windows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import set_seed

from ..data.augment import Items
from ..data.batches import Layout, TrainData, is_stream, sized
from ..data.indexed import IndexedData
from ..data.samples import Sampled, SampledSet
from ..distributed.agreement import Agreement
from ..errors import DataError, Origin
from ..task import Data, Task
from .returned import data_of

if TYPE_CHECKING:
    from ..config.train_config import TrainConfig


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
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # torch wants it for matmuls
        # transformers asks the flash-attn packages for it; they do not know torch's switch.
        os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"
        # Otherwise every buffer that is written anyway would be filled with NaN first.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    set_seed(config.seed, deterministic=config.deterministic)
    data = data_of(task)
    evaluation_size(data.evaluation)  # an empty one is refused now, not at the first evaluation

    kind: type[TrainData] = IndexedData
    if is_stream(data.train):
        if data.evaluation is data.train and hasattr(data.train, "state_dict"):
            raise DataError(
                "Data.train and Data.evaluation are one stream, and its position serves one of "
                "them only: give evaluation a stream of its own (copy.deepcopy)"
            )
        from ..data.stream import StreamData, check_stream_settings

        check_stream_settings(config, origins)
        kind = StreamData

    counts_examples = type(task).weight is Task.weight
    windows = kind(
        data.train,
        layout,
        seed=config.seed,
        collate=data.collate,
        augment=data.augment,
        weight_of=None if counts_examples else task.weight,
        drop_last=config.drop_last,
        workers=config.workers,
        pin_memory=pin_memory,
    )
    return data, windows


def sample_data(
    config: TrainConfig, data: Data, train: TrainData, agreement: Agreement, *, needed: bool
) -> Sampled:
    """Read some samples of each data set: ranks compare them, and checkpoints keep what they hold.

    Args:
        needed: whether checkpoints are written or read. One process reads samples for that alone.
    """
    if not agreement.distributed and not needed:
        return Sampled([], agreement.gather)

    how: dict[str, Any] = {"collate": train.collate, "workers": config.workers > 0}
    micro_batch = train.layout.micro_batch_size
    training_set = SampledSet(
        name="Data.train",
        items=train.items,
        batch_size=micro_batch,
        version=data.version,
        **how,
    )
    sets = [training_set]
    if agreement.distributed and data.evaluation is not data.train:
        evaluation_set = SampledSet(
            name="Data.evaluation",
            items=Items(data.evaluation, seed=config.seed, augment=None),
            batch_size=config.evaluation_batch_size or micro_batch,
            **how,
        )
        sets.append(evaluation_set)
    return Sampled(sets, agreement.gather)


def evaluation_size(dataset: Any) -> int | None:
    """Count the samples to measure on: 0 without any, None for a stream."""
    if dataset is None:
        return 0
    return None if is_stream(dataset) else sized(dataset, "evaluation")
