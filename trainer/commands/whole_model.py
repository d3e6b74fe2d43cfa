"""A task's model in this process alone."""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate.utils import set_seed
from torch import nn

from ..building.meta_model import MetaModel
from ..building.returned import model_of
from ..checkpoint.ranges import of_model_folder
from ..strategies.meta_device import allocate
from ..strategies.tensors import canonical_state
from ..task import Task


def build_whole(task: Task, seed: int = 0) -> nn.Module:
    """Build a task's model on the CPU of this process alone, with its values, wherever the task has
    them from.

    Raises:
        CheckpointError: its files do not hold them.
        LaunchError: nobody gives a parameter a value.
    """
    set_seed(seed)
    model = model_of(task)
    if (unfilled := MetaModel.of(model, task, seed, resumes=False)) is None:
        return model
    allocate(model.modules(), torch.device("cpu"))
    tensors, source = dict(canonical_state(model)), unfilled.source
    for name, value in unfilled.blank.first_values(tensors if source is None else set(source.new)):
        tensors[name].data.copy_(value)
    if source is not None:
        store, shapes = of_model_folder(Path(source.folder), source.names)
        for name in shapes.keys() & tensors.keys() - set(source.new):
            store.read("parameter", name, 0, tensors[name].data.view(-1))
    return model
