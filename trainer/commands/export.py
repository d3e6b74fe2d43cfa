"""``trainer export CHECKPOINT --to DIR``: write the model of a checkpoint as safetensors.

A single process reads a checkpoint of any layout, without a strategy and a task, tensor by tensor.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor

from ..checkpoint.contents import Contents
from ..checkpoint.discover import inspect, opened, verify
from ..checkpoint.exported import write_model
from ..config.paths import LocalPath
from ..errors import usage_error
from .usage import only_folders


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    to: Annotated[LocalPath, "the new folder of the model"]


def run(options: Options, settings: Sequence[str], words: Sequence[str]) -> int:
    """Write the model, print the file, and return 0. Raises as ``export_checkpoint`` does."""
    (checkpoint,) = only_folders(settings, words)
    path = export_checkpoint(Path(checkpoint), Path(options.to))
    print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


def export_checkpoint(checkpoint: Path, folder: Path) -> Path:
    """Write the model of a verified checkpoint as ``Run.export`` would have. Return the file.

    Raises:
        ConfigError: ``folder`` exists.
        CheckpointError: the checkpoint is missing or damaged, or ``folder`` cannot be written.
    """
    if os.path.lexists(folder):
        raise usage_error("to", str(folder), "exists already; give a new folder")
    info = verify(inspect(checkpoint))
    contents = opened(info)
    form = contents.model_file
    exported = [item for item in contents.model.items() if form.name(item[0])]
    entries = [(str(form.name(name)), whole.shape, whole.dtype) for name, whole in exported]
    tensors = (_read(contents, name, whole.dtype) for name, whole in exported)

    def save_beside(part: Path) -> None:
        for name in info.files:
            if name.startswith("extras/"):
                path = part / name.removeprefix("extras/")
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(checkpoint / name, path)

    write_model(folder, form.file, entries, tensors, save_beside)
    return folder / form.file


def _read(contents: Contents, name: str, dtype: torch.dtype) -> Tensor:
    """Read a whole tensor of the model, or the moving average if the checkpoint has an average."""
    kind = contents.kind(name)
    if contents.ranges.holds("average", name):
        kind = "average"
    if kind is None:  # a tensor without elements: the checkpoint stores nothing
        return torch.empty(0, dtype=dtype)
    return contents.ranges.whole(kind, name).to(dtype)
