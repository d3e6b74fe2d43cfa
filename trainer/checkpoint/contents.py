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
from .export import ADAPTER_FILE, ModelFile
from .ranges import Ranges, of_rank_files
from .safetensors_io import DTYPE_NAMES
from .untrusted import (
    check_form,
    dict_of,
    is_count,
    is_number,
    is_text,
    list_of,
    parse_json,
    path_inside,
    read_json,
)

STATE = "state.json"
WEIGHTS = ("parameter", "frozen", "buffer")  # the kinds that a tensor of the model can be stored as
_RANK_FILE = re.compile(r"rank-[0-9]{5,}\.safetensors")
Tensors = list[tuple[str, tuple[int, ...], torch.dtype]]


def _is_model(value: Any) -> bool:
    """Tell whether a value is a list of ``[name, shape, dtype]`` in which each name stands once."""
    whole = list_of(
        lambda one: isinstance(one, list) and len(one) == 3 and list_of(is_count)(one[1])
    )(value)
    whole = whole and all(
        is_text(name) and is_text(dtype) and dtype in DTYPE_NAMES for name, _, dtype in value
    )
    return whole and len({name for name, *_ in value}) == len(value)


_GROUP = dict_of(names=list_of(is_text), settings=dict_of())
_STATE = {
    "step": is_count,
    "samples": is_count,
    "data": dict_of(samples=is_count),
    "schedule": dict_of(kind=is_text, steps=is_count, lr=list_of(is_number), own=dict_of()),
    "skipped_steps": is_count,
    "skipped_in_a_row": is_count,
    "scaler": lambda value: (
        value == {} or dict_of(is_number, scale=is_number, good_steps=is_number)(value)
    ),
    "model": _is_model,
    "group_settings": list_of(dict_of()),
    "task": lambda value: isinstance(value, dict | list),
    "callbacks": dict_of(),
    "mathematics": dict_of(optimizer=is_text, optimizer_groups=list_of(_GROUP)),
    "last_evaluation": dict_of(lambda value: is_number(value) or dict_of(is_text)(value)),
}
_LATER = {  # which checkpoints did not always keep
    "config": dict_of(),
    "not_finite_at_start": list_of(is_text),
    "content": dict_of(dict_of(is_count)),
    "evaluation_owed": lambda value: isinstance(value, bool),
    "spent": dict_of(tokens=is_number, seconds=is_number),
    "export": dict_of(file=lambda value: value == ADAPTER_FILE, names=dict_of(is_text)),
}


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
        if not isinstance(state, dict):
            raise CheckpointError(f"{STATE}: holds no mapping")
        check_form(
            state, {**_STATE, **{key: fits for key, fits in _LATER.items() if key in state}}, STATE
        )
        model = [(name, tuple(shape), DTYPE_NAMES[dtype]) for name, shape, dtype in state["model"]]
        if "export" in state and (
            unknown := state["export"]["names"].keys() - {name for name, *_ in model}
        ):
            raise CheckpointError(
                f"{STATE}: 'export' names {min(unknown)!r}, which is not in the model"
            )
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
        parse_json(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{STATE}: cannot be written: {error}") from None
    return text
