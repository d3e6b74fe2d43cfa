"""A task's whole model, built in the process of a test."""

from __future__ import annotations

from typing import Any

import torch
from accelerate.utils import set_seed
from torch import nn

from trainer.building.meta_model import fill_buffers
from trainer.building.returned import returned
from trainer.checkpoint.ranges import of_pretrained
from trainer.strategies.meta_device import allocate
from trainer.strategies.tensors import canonical_state
from trainer.task import Task, new_names


def build_whole(task: Task, seed: int = 0) -> nn.Module:
    """Build a task's model with the first values, on the CPU of this process.

    A model on the meta device is allocated and filled, from the files of a pretrained model and by
    the modules' initialization.

    Raises:
        CheckpointError: the pretrained model's files lack a tensor.
        LaunchError: nothing initializes a parameter.
    """
    set_seed(seed)
    model = returned(task.build_model(), nn.Module, task, "build_model")
    fill: Any = fill_buffers(model, task, seed, resumes=False)
    initial_values, sources = fill.args
    allocate(model.modules(), torch.device("cpu"), {})
    tensors = canonical_state(model)
    new = new_names(sources)
    for name, value in initial_values.draw(new if sources else tensors):
        tensors[name].data.copy_(value)

    store, entries = of_pretrained(sources)
    for name in entries.keys() & tensors.keys() - new:
        store.read("parameter", name, 0, tensors[name].data.view(-1))
    return model
