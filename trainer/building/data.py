"""The data of a run: the task's data sets, and the training set cut into windows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import set_seed

from ..data.augment import Items
from ..data.batches import Layout, TrainData, is_stream
from ..data.indexed import IndexedData
from ..data.samples import Sampled, SampledSet
from ..distributed.agreement import Agreement
from ..errors import Origin
from ..evaluator import place_of, sets_of, sizes_of
from ..task import Data, Task
from .returned import returned

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
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # for torch's matrix products
        # The flash-attn packages do not know torch's switch. transformers reads this variable.
        os.environ["FLASH_ATTENTION_DETERMINISTIC"] = "1"
        # Otherwise every buffer that is written anyway would be filled with NaN first.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    set_seed(config.seed, deterministic=config.deterministic)
    data = returned(task.build_data(), Data, task, "build_data")
    sizes_of(data)  # an empty set is refused now, not at the first evaluation

    kind: type[TrainData] = IndexedData
    if is_stream(data.train):
        from ..data.stream import StreamData, check_stream_settings

        check_stream_settings(config, origins)
        kind = StreamData

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


def sample_data(
    config: TrainConfig, data: Data, train: TrainData, agreement: Agreement, *, needed: bool
) -> Sampled:
    """Read some samples of each data set, which ranks compare, and checkpoints keep.

    Args:
        needed: whether checkpoints are written or read. One process reads samples for that alone.
    """
    if not agreement.distributed and not needed:
        return Sampled([], agreement.gather)

    how: dict[str, Any] = {"collate": train.collate, "workers": config.workers > 0}
    sets = [
        SampledSet(name="Data.train", items=train.items, version=data.version, **how),
    ]
    if agreement.distributed:
        for name, chosen in sets_of(data).items():
            if chosen.items is not data.train:
                how["collate"] = chosen.collate or train.collate
                items = Items(chosen.items, seed=config.seed, augment=None)
                sets.append(SampledSet(name=place_of(name), items=items, **how))
    return Sampled(sets, agreement.gather)
