"""A checkpoint, opened: state.json, the model's tensors and all other tensors."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from .export import ModelFile
from .forms import STATE_FORM, check_form
from .ranges import Ranges, of_rank_files
from .safetensors_io import CODES
from .store import STATE
from .untrusted import path_inside, read_json

WEIGHTS = ("parameter", "frozen", "buffer")  # the kinds as which a tensor of the model is stored
_RANK_FILE = re.compile(r"rank-[0-9]{5,}\.safetensors")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """A checkpoint, opened.

    Args:
        state: the values of state.json, in the form of ``STATE_FORM``.
        model: name, shape and dtype of each tensor of a model file, in the order of the file.
        ranges: the tensors.
    """

    state: Mapping[str, Any]
    model: list[tuple[str, tuple[int, ...], torch.dtype]]
    ranges: Ranges

    @classmethod
    def of(cls, folder: Path, names: Iterable[str]) -> Contents:
        """Open a checkpoint that consists of the files ``names``. Of tensors only headers are read.

        Raises:
            CheckpointError: state.json or a header has another form.
            OSError: a file cannot be read.
        """
        file = path_inside(folder, STATE)
        state = read_json(file)
        check_form(file.read_bytes(), STATE_FORM, STATE)

        model = []
        for name, shape, dtype in state["model"]:
            named = getattr(torch, dtype, None)
            if named not in CODES:
                raise CheckpointError(f"{STATE}: {name} has the unknown dtype {dtype!r}")
            model.append((name, tuple(shape), named))

        paths = [path_inside(folder, name) for name in names if _RANK_FILE.fullmatch(name)]
        return cls(state=state, model=model, ranges=of_rank_files(paths))

    def kind(self, name: str) -> str | None:
        """Return the kind as which a tensor of the model is stored.

        None for a tensor that is not stored, such as a tensor without elements.
        """
        return next((kind for kind in WEIGHTS if self.ranges.holds(kind, name)), None)

    @property
    def model_file(self) -> ModelFile:
        """Return the form of the exported file: of the saved part, or of the whole model."""
        export = self.state.get("export")
        if export is None:
            return ModelFile()
        return ModelFile(file=export["file"], names=export["names"])

    def check_model(self) -> None:
        """Check that the files hold every element of each tensor of the model.

        Raises:
            CheckpointError: an element is missing, or stored twice.
        """
        for name, shape, _ in self.model:
            numel = math.prod(shape)
            self.ranges.check_whole(self.kind(name) or WEIGHTS[0], name, numel)
            if self.ranges.holds("average", name):
                self.ranges.check_whole("average", name, numel)
