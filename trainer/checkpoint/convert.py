"""``trainer export CHECKPOINT --to DIR``: the model of a checkpoint, as safetensors, in one process.

No strategy is built and no task is imported; one tensor is in memory at a time.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..export import MODEL_FILE, hidden, make_anew, take_place
from ..tensorfile import header, raw
from .ranges import of_rank_files
from .store import STATE, look, verify

Entry = tuple[str, tuple[int, ...], torch.dtype]


def run(argv: Sequence[str]) -> int:
    """0: the model is written."""
    parser = argparse.ArgumentParser(prog="trainer export", description=__doc__.split("\n\n")[0])
    parser.add_argument("checkpoint", type=Path, help="a folder such as RUN/checkpoints/step-00000120")
    parser.add_argument("--to", type=Path, required=True, help="the new folder of the model")
    parser.add_argument("--without-average", action="store_true", help="the weights, where a moving average was kept")
    args = parser.parse_args(argv)
    export_checkpoint(args.checkpoint, args.to, averaged=not args.without_average)
    print(f"{args.to / MODEL_FILE}: {(args.to / MODEL_FILE).stat().st_size:,} bytes")
    return 0


def export_checkpoint(checkpoint: Path, folder: Path, *, averaged: bool = True) -> None:
    """Write the model of a checkpoint, as ``Trainer.export`` would have written it at that step.

    Raises:
        CheckpointError: the checkpoint is damaged, or ``folder`` exists.
    """
    found = verify(look(checkpoint))
    if found.problem:
        raise CheckpointError(f"{checkpoint}: {found.problem}")
    store = of_rank_files(checkpoint / name for name in found.files if name.endswith(".safetensors"))
    model = json.loads((checkpoint / STATE).read_text(encoding="utf-8"))["model"]
    entries = [(name, tuple(shape), getattr(torch, dtype)) for name, shape, dtype in model]
    order = (("average",) if averaged else ()) + ("parameter", "frozen", "buffer")

    def tensors() -> Iterable[Tensor]:
        for name, _, dtype in entries:
            kind = next(kind for kind in order if store.numel(kind, name) or kind == "buffer")
            yield store.whole(kind, name).to(dtype)

    extras = {name.removeprefix("extras/"): checkpoint / name for name in found.files if name.startswith("extras/")}
    write_model(folder, entries, tensors(), {name: path.read_bytes() for name, path in extras.items()})


def write_model(folder: Path, entries: Sequence[Entry], tensors: Iterable[Tensor], extras: dict[str, bytes]) -> None:
    """Write ``tensors``, one at a time, in the order of ``entries``, and small files beside them, to a new folder.

    Raises:
        CheckpointError: ``folder`` exists.
    """
    if folder.exists():
        raise CheckpointError(f"{folder}: exists already; give a new folder")
    temporary = hidden(folder)
    make_anew(temporary)
    with open(temporary / MODEL_FILE, "wb") as file:
        file.write(header(entries, {"format": "pt"}))
        for tensor in tensors:
            file.write(raw(tensor.contiguous()))
        file.flush()
        os.fsync(file.fileno())
    for name, content in extras.items():
        (temporary / name).parent.mkdir(parents=True, exist_ok=True)
        (temporary / name).write_bytes(content)
    take_place(temporary, folder)
