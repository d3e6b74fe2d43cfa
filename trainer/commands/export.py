"""``trainer export CHECKPOINT --to DIR``: write the model of a checkpoint as safetensors, in one process.

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
from ..checkpoint.discover import look, verify
from ..checkpoint.export import MODEL_FILE, check_model_file, hidden, make_anew, take_place
from ..checkpoint.safetensors_io import header, raw
from ..errors import CheckpointError


def run(argv: Sequence[str]) -> int:
    """Write the model; return 0."""
    parser = argparse.ArgumentParser(prog="trainer export", description=__doc__.split("\n\n")[0])
    parser.add_argument("checkpoint", type=Path, help="a folder such as RUN/checkpoints/step-00000120")
    parser.add_argument("--to", type=Path, required=True, help="the new folder of the model")
    parser.add_argument("--without-average", action="store_true", help="the weights, where a moving average was kept")
    args = parser.parse_args(argv)
    path = export_checkpoint(args.checkpoint, args.to, averaged=not args.without_average)
    print(f"{path}: {path.stat().st_size:,} bytes")
    return 0


def export_checkpoint(checkpoint: Path, folder: Path, *, averaged: bool = True) -> Path:
    """Write the model of a checkpoint, as ``Trainer.export`` would have written it at that step; returns its file.

    Raises:
        CheckpointError: the checkpoint is damaged, or ``folder`` exists.
    """
    found = verify(look(checkpoint))
    if found.problem:
        raise CheckpointError(f"{checkpoint}: {found.problem}")
    contents = found.open()

    form = contents.model_file
    model = [(name, shape, dtype) for name, shape, dtype in contents.model if form.name(name) is not None]

    def tensors() -> Iterable[Tensor]:
        for name, _, dtype in model:
            kind = "average" if averaged and contents.ranges.holds("average", name) else contents.kind(name)
            yield torch.empty(0, dtype=dtype) if kind is None else contents.ranges.whole(kind, name).to(dtype)

    extras = {name.removeprefix("extras/"): checkpoint / name for name in found.files if name.startswith("extras/")}
    entries = [(str(form.name(name)), shape, dtype) for name, shape, dtype in model]
    beside = {name: path.read_bytes() for name, path in extras.items()}
    write_model(folder, entries, tensors(), beside, file_name=form.file)
    return folder / form.file


def write_model(
    folder: Path,
    entries: Tensors,
    tensors: Iterable[Tensor],
    extras: Mapping[str, bytes],
    *,
    file_name: str = MODEL_FILE,
) -> None:
    """Write ``tensors``, one at a time, in the order of ``entries``, and small files beside them, to a new folder.

    Raises:
        CheckpointError: ``folder`` exists or cannot be written, or safetensors cannot hold the tensors.
    """
    if os.path.lexists(folder):
        raise CheckpointError(f"{folder}: exists already; give a new folder")
    if file_name in extras:
        raise CheckpointError(f"{file_name} stands among the files beside the model, and is the model's own name")
    temporary = hidden(folder)
    try:
        make_anew(temporary)
        with open(temporary / file_name, "wb") as file:
            file.write(header(entries, {"format": "pt"}))
            for tensor in tensors:
                file.write(raw(tensor.contiguous()))
            file.flush()
            os.fsync(file.fileno())
        for name, content in extras.items():
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            (temporary / name).write_bytes(content)
        check_model_file(temporary / file_name)
        take_place(temporary, folder)
    except OSError as error:
        raise CheckpointError(f"{folder}: cannot be written: {error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
