"""What the files of a checkpoint hold, read from a stranger's as carefully as from one's own."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import CheckpointError
from .adapters import ADAPTER_FILE
from .export import ModelFile
from .ranges import Ranges, of_rank_files
from .safetensors_io import DTYPE_NAMES
from .untrusted import is_count, is_number, parse_json, path_inside, read_small

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
            CheckpointError: they hold what no checkpoint holds; caused by an OSError where they cannot be read.
        """
        try:
            text = read_small(path_inside(folder, STATE))
        except OSError as error:
            raise CheckpointError(f"{STATE} cannot be read: {error.strerror or error}") from error
        try:
            state = parse_json(text)
        except ValueError as error:
            raise CheckpointError(f"{STATE}: {error}") from None
        fitting = isinstance(state, dict)
        wrong = [key for key, fits in _STATE.items() if not (fitting and fits(state.get(key)))]
        if wrong:
            raise CheckpointError(f"{STATE}: {wrong[0]!r} is not what the format has there")
        ranges = of_rank_files(path_inside(folder, name) for name in names if is_rank_file(name))
        model = _model(state["model"])
        known = {name for name, *_ in model}
        if "export" in state and not (_EXPORT(state["export"]) and state["export"]["names"].keys() <= known):
            raise CheckpointError(f"{STATE}: 'export' is not what the format has there")
        return cls(state=state, model=model, ranges=ranges)

    def kind(self, name: str) -> str | None:
        """As what a tensor of the model is stored; None where it is not, which is right for one without elements."""
        return next((kind for kind in WEIGHTS if self.ranges.holds(kind, name)), None)

    @property
    def model_file(self) -> ModelFile:
        """What of the model is exported; checkpoints of peft models say so."""
        return ModelFile(**self.state["export"]) if "export" in self.state else ModelFile()

    def problem(self) -> str:
        """Say which tensor of the model is not whole in the files; empty if a model can be made of them."""
        for name, shape, _ in self.model:
            kind = self.kind(name)
            kinds = [kind or WEIGHTS[0], *(["average"] if self.ranges.holds("average", name) else [])]
            for problem in (self.ranges.gap(kind, name, math.prod(shape)) for kind in kinds):
                if problem:
                    return problem
        return ""


def is_rank_file(name: str) -> bool:
    """Whether a file of a checkpoint is that of a process."""
    return _RANK_FILE.fullmatch(name) is not None


def state_text(state: Mapping[str, Any]) -> bytes:
    """Return ``state.json`` as it is written.

    Raises:
        CheckpointError: it holds what JSON does not, or could not be read again.
    """
    try:
        text = (json.dumps(state, indent=1, allow_nan=False) + "\n").encode()
        parse_json(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{STATE}: cannot be written: {error}") from None
    return text


def _model(listed: Any) -> Tensors:
    tensors: Tensors = []
    seen: set[str] = set()
    for entry in listed:
        name, shape, dtype = entry if isinstance(entry, list) and len(entry) == 3 else (None, None, None)
        if not (isinstance(name, str) and isinstance(shape, list) and all(map(is_count, shape))) or name in seen:
            raise CheckpointError(f"{STATE}: 'model' is not what the format has there: {str(entry)[:80]!r}")
        if not (isinstance(dtype, str) and dtype in DTYPE_NAMES):
            raise CheckpointError(f"{STATE}: {name!r} of the model has no dtype that safetensors holds: {dtype!r}")
        seen.add(name)
        tensors.append((name, tuple(shape), DTYPE_NAMES[dtype]))
    return tensors


def _is_list(fits: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(fits, value))


def _is_dict(fits: Callable[[Any], bool] = lambda value: True, **keys: Callable[[Any], bool]) -> Callable[[Any], bool]:
    """A mapping whose values fit, and that has these keys."""
    return lambda value: (
        isinstance(value, dict)
        and all(map(fits, value.values()))
        and all(key in value and key_fits(value[key]) for key, key_fits in keys.items())
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_scaler(value: Any) -> bool:
    return value == {} or _is_dict(is_number, scale=is_number, good_steps=is_number)(value)


def _is_encoded_number(value: Any) -> bool:
    return is_number(value) or _is_dict(_is_text)(value)


_EXPORT = _is_dict(file=lambda name: name == ADAPTER_FILE, names=_is_dict(_is_text))
_STATE: Mapping[str, Callable[[Any], bool]] = {
    "step": is_count,
    "samples": is_count,
    "data": _is_dict(samples=is_count),
    "schedule": _is_dict(kind=_is_text, steps=is_count, lr=_is_list(is_number), own=_is_dict()),
    "skipped_steps": is_count,
    "skipped_in_a_row": is_count,
    "scaler": _is_scaler,
    "model": _is_list(lambda value: isinstance(value, list)),
    "group_settings": _is_list(_is_dict()),
    "task": lambda value: isinstance(value, dict | list),
    "callbacks": _is_dict(),
    "mathematics": _is_dict(optimizer=_is_text, optimizer_groups=_is_list(_is_dict())),
    "last_evaluation": _is_dict(_is_encoded_number),
}
