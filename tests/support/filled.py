"""A task's model in this process alone, with its values: what a training does once the model is divided."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from trainer import Task
from trainer.checkpoint.ranges import of_model_folder
from trainer.strategies.blank import Blank, allocate, is_blank
from trainer.strategies.tensors import canonical_state


@torch.no_grad()
def filled(task: Task, seed: int = 0) -> Any:
    model = task.build_model()
    if not is_blank(model):
        return model
    source = task.pretrained(model)
    blank = Blank(model, task.initialize, seed)
    allocate(model.parameters(), torch.device("cpu"))
    tensors = dict(canonical_state(model))
    for name, value in blank.first_values(set(tensors) if source is None else set(source.new)):
        tensors[name].copy_(value)
    if source is not None:
        store, shapes = of_model_folder(Path(source.folder), source.names)
        for name in shapes.keys() & tensors.keys():
            store.read("parameter", name, 0, tensors[name].view(-1))
    return model
