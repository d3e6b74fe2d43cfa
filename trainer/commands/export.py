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

from ..checkpoint.contents import Tensors
from ..checkpoint.discover import inspect, verify
from ..checkpoint.export import MODEL_FILE, write_model
from ..errors import CheckpointError
from .usage import local_path


def run(argv: Sequence[str]) -> int:
    """Write the model; return 0."""
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
    """Write the model of a checkpoint, as ``Trainer.export`` would have written it at that step;
    returns its file.

    Raises:
        CheckpointError: the checkpoint is damaged, or ``folder`` exists.
    """
    info = verify(inspect(checkpoint))
    contents = info.open()
    form = contents.model_file
    model = [
        (name, shape, dtype) for name, shape, dtype in contents.model if form.name(name) is not None
    ]

    def tensors() -> Iterable[Tensor]:
        for name, _, dtype in model:
            kind = (
                "average"
                if averaged and contents.ranges.holds("average", name)
                else contents.kind(name)
            )
            yield (
                torch.empty(0, dtype=dtype)
                if kind is None
                else contents.ranges.whole(kind, name).to(dtype)
            )

    extras = {
        name.removeprefix("extras/"): checkpoint / name
        for name in info.files
        if name.startswith("extras/")
    }
    entries = [(str(form.name(name)), shape, dtype) for name, shape, dtype in model]
    write_new_model(folder, entries, tensors(), extras, file_name=form.file)
    return folder / form.file


def write_new_model(
    folder: Path,
    entries: Tensors,
    tensors: Iterable[Tensor],
    extras: Mapping[str, bytes | Path],
    *,
    file_name: str = MODEL_FILE,
) -> None:
    """Write ``tensors``, one at a time, in the order of ``entries``, and files beside them, to a
    new folder.

    Args:
        extras: of the files beside the model, by name: what is in them, or the file to copy.

    Raises:
        CheckpointError: ``folder`` exists or cannot be written, or safetensors cannot hold the
            tensors.
    """
    if os.path.lexists(folder):
        raise CheckpointError(f"{folder}: exists already; give a new folder")
    if file_name in extras:
        raise CheckpointError(
            f"{file_name} stands among the files beside the model, and is the model's own name"
        )

    def save_beside(part: Path) -> None:
        for name, content in extras.items():
            (part / name).parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                shutil.copyfile(
                    content, part / name
                )  # in pieces: a stranger's may be larger than the memory
            else:
                (part / name).write_bytes(content)

    write_model(folder, file_name, entries, tensors, save_beside)
