"""What the files of a checkpoint hold, read from a stranger's as carefully as from one's own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from .export import ModelFile
from .ranges import Ranges, of_rank_files
from .safetensors_io import DTYPE_NAMES
from .schema import STATE_SCHEMA, check_schema
from .untrusted import LARGEST_JSON, path_inside, read_json, too_large

STATE = "state.json"
WEIGHTS = ("parameter", "frozen", "buffer")  # the kinds that a tensor of the model can be stored as
_RANK_FILE = re.compile(r"rank-[0-9]{5,}\.safetensors")
Tensors = list[tuple[str, tuple[int, ...], torch.dtype]]


@dataclass(frozen=True, kw_only=True)
class Contents:
    """A checkpoint, opened.

    Args:
        state: of ``state.json``; its keys are there and have the types that the format gives them.
        model: name, shape and dtype of each tensor of a model file, in its order.
        ranges: the tensors.
    """

    state: Mapping[str, Any]
    model: Tensors
    ranges: Ranges

    @classmethod
    def of(cls, folder: Path, names: Iterable[str]) -> Contents:
        """Open the files ``names`` of a checkpoint; of its tensors only the headers are read.

        Raises:
            CheckpointError, OSError: they hold what no checkpoint holds, or cannot be read.
        """
        state = read_json(path_inside(folder, STATE))
        check_schema(state, STATE_SCHEMA, STATE)
        model = []
        for name, shape, dtype in state["model"]:
            if dtype not in DTYPE_NAMES:
                raise CheckpointError(f"{STATE}: {name} has the unknown dtype {dtype!r}")
            model.append((name, tuple(shape), DTYPE_NAMES[dtype]))
        ranges = of_rank_files(path_inside(folder, name) for name in names if is_rank_file(name))
        return cls(state=state, model=model, ranges=ranges)

    def kind(self, name: str) -> str | None:
        """Return as what a tensor of the model is stored; None where it is not, which is right for
        an empty one.
        """
        return next((kind for kind in WEIGHTS if self.ranges.holds(kind, name)), None)

    @property
    def model_file(self) -> ModelFile:
        """Return what of the model is exported; checkpoints of peft models say so."""
        export = self.state.get("export")
        return ModelFile(file=export["file"], names=export["names"]) if export else ModelFile()

    def check_model(self) -> None:
        """Hold the tensors to the model; ``CheckpointError`` if one of them is not whole in the
        files.
        """
        for name, shape, _ in self.model:
            self.ranges.check_whole(self.kind(name) or WEIGHTS[0], name, math.prod(shape))
            if self.ranges.holds("average", name):
                self.ranges.check_whole("average", name, math.prod(shape))


def is_rank_file(name: str) -> bool:
    """Tell whether a file of a checkpoint is that of a process."""
    return _RANK_FILE.fullmatch(name) is not None


def state_text(state: Mapping[str, Any]) -> bytes:
    """Return ``state.json`` as it is written; ``CheckpointError`` if it could not be read again."""
    try:
        text = (json.dumps(state, indent=1, allow_nan=False) + "\n").encode()
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{STATE}: cannot be written: {error}") from None
    if len(text) > LARGEST_JSON:
        raise CheckpointError(f"{STATE}: cannot be written: {too_large()}")
    return text
