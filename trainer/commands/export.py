"""``trainer export CHECKPOINT --to DIR``: write the model of a checkpoint as safetensors, in one
process.

No strategy is built and no task is imported; one tensor is in memory at a time.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint.contents import Contents, Tensors
from ..checkpoint.discover import inspect, verify
from ..checkpoint.export import MODEL_FILE, write_model
from ..errors import CheckpointError
from .usage import local_path


def run(argv: Sequence[str]) -> int:
    """Write the model, print its file, and return 0.

    Raises:
        CheckpointError: the checkpoint is damaged, or the new folder exists.
    """
    parser = argparse.ArgumentParser(prog="trainer export", description=__doc__.split("\n\n")[0])
    parser.add_argument(
        "checkpoint", type=local_path, help="a folder such as RUN/checkpoints/step-00000120"
    )
    parser.add_argument("--to", type=local_path, required=True, help="the new folder of the model")
    parser.add_argument(
        "--without-average",
        action="store_true",
        help="the weights, where a moving average was kept",
    )
    args = parser.parse_args(argv)

    path = export_checkpoint(args.checkpoint, args.to, averaged=not args.without_average)
    print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


def export_checkpoint(checkpoint: Path, folder: Path, *, averaged: bool = True) -> Path:
    """Write the model of a checkpoint as ``Trainer.export`` would have written it at that step.

    Args:
        checkpoint: its folder; every byte of it is verified first.
        folder: the new folder of the model.
        averaged: write the moving average of the weights where there is one, not the weights.

    Returns:
        The file of the model in ``folder``.

    Raises:
        CheckpointError: the checkpoint is damaged, or ``folder`` exists.
    """
    info = verify(inspect(checkpoint))
    contents = info.open()
    form = contents.model_file

    names: list[str] = []
    entries: Tensors = []
    for name, shape, dtype in contents.model:
        name_in_file = form.name(name)
        if name_in_file is not None:
            names.append(name)
            entries.append((name_in_file, shape, dtype))
    tensors = (
        _read(contents, name, dtype, averaged=averaged)
        for name, (_, _, dtype) in zip(names, entries, strict=True)
    )

    extras: dict[str, bytes | Path] = {}
    for name in info.files:
        if name.startswith("extras/"):
            extras[name.removeprefix("extras/")] = checkpoint / name
    write_new_model(folder, entries, tensors, extras, file_name=form.file)
    return folder / form.file


def _read(contents: Contents, name: str, dtype: torch.dtype, *, averaged: bool) -> Tensor:
    """Read a whole tensor of the model: its moving average where that is asked for and was kept."""
    kind = contents.kind(name)
    if averaged and contents.ranges.holds("average", name):
        kind = "average"
    if kind is None:  # a tensor without elements, of which the checkpoint stores nothing
        return torch.empty(0, dtype=dtype)

    return contents.ranges.whole(kind, name).to(dtype)


def write_new_model(
    folder: Path,
    entries: Tensors,
    tensors: Iterable[Tensor],
    extras: Mapping[str, bytes | Path],
    *,
    file_name: str = MODEL_FILE,
) -> None:
    """Write a model to a new folder, one tensor at a time, and other files beside it.

    Args:
        folder: the new folder.
        entries: name, shape and dtype of each tensor.
        tensors: in the order of ``entries``.
        extras: the files beside the model by name: their content, or the file to copy.
        file_name: of the model.

    Raises:
        CheckpointError: ``folder`` exists or cannot be written, or safetensors cannot hold the
            tensors.
    """
    if os.path.lexists(folder):
        raise CheckpointError(f"{folder}: exists already; give a new folder")
    if file_name in extras:
        raise CheckpointError(
            f"{file_name} is among the files beside the model, and is the model's own name"
        )

    def save_extras(part: Path) -> None:
        for name, content in extras.items():
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                # Copied in pieces: the file may be larger than the memory.
                shutil.copyfile(content, path)
            else:
                path.write_bytes(content)

    write_model(folder, file_name, entries, tensors, save_extras)
