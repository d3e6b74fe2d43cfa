"""This rank's part of a checkpoint in host memory, and the files that the main process adds."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..config.plain import plain
from ..data import rng
from ..distributed.exit import print_line
from ..errors import CheckpointError
from ..optim.groups import settings
from ..text import hidden, versions
from .disk import LARGEST_JSON, path_inside, write_file
from .optimizer_state import schedule_state
from .parts import Parts
from .safetensors_io import CODES, Key, dtype_name, write_pieces
from .store import STATE

_tell_once = cache(print_line)


def take(
    parts: Parts, pieces: Iterable[tuple[Key, Tensor]], *, copied: bool
) -> list[tuple[Key, Tensor]]:
    """Copy the tensors that this rank writes to host memory. Each rank works by itself.

    Args:
        copied: whether training continues while the copies are written. Otherwise tensors that
            are in host memory already are not copied.
    """
    taken: list[tuple[Key, Tensor]] = []
    buffers = parts.buffer_pieces() if parts.rank == 0 else ()
    for key, tensor in (*pieces, *buffers):
        on_host = tensor.detach()
        if copied or tensor.is_cuda:
            try:  # from a GPU to page-locked memory, for which the host does not wait
                on_host = on_host.to("cpu", non_blocking=True, copy=True)
            except RuntimeError:  # the system locks no more pages for GPUs
                _tell_once("notice: no page-locked memory for a save, which takes longer without")
                on_host = on_host.to("cpu", copy=True)
        taken.append((key, on_host))
    if parts.plan.device == "cuda":
        torch.cuda.synchronize()  # once, for all the copies that were begun

    rank = str(parts.rank)
    return taken + [(Key(f"rng.{name}", rank), state) for name, state in rng.read().items()]


def write(
    folder: Path, rank: int, pieces: list[tuple[Key, Tensor]], files: Mapping[str, bytes]
) -> dict[str, Any]:
    """Write a rank's files, flushed to the disk. Return their entries in the manifest.

    Args:
        files: small files by name, of the main process.
    """
    facts = write_pieces(folder / f"rank-{rank:05d}.safetensors", pieces)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        facts |= write_file(folder / name, [content], name)
    return facts


def describe(parts: Parts) -> tuple[bytes, dict[str, Tensor]]:
    """Return the text of state.json, and the tensors that the text names."""
    strategy, form = parts.strategy, parts.model_file
    state = {
        **parts.counters,
        "schedule": schedule_state(parts.schedule),
        "data": parts.data.state(),
        "content": parts.sampled.state(),
        "scaler": strategy.scaler_state(),
        "group_settings": list(map(settings, strategy.optimizer.param_groups)),
        "task": parts.task.state_dict(),
        "callbacks": {
            name: kept
            for name, callback in parts.named_callbacks().items()
            if (kept := callback.state_dict())
        },
        "model": [
            [name, [*shape], dtype_name(form.dtypes.get(name, dtype))]
            for name, shape, dtype, handle in strategy.named_tensors()
            if not parts.leaves_out(name, handle)
        ],
        "mathematics": parts.mathematics,
        "config": hidden(plain(parts.config, compared=True)),
        "plan": plain(parts.plan.as_dict(), compared=True),
        "versions": versions(),
    }
    if form.names is not None:
        state["export"] = {"file": form.file, "names": form.names}
    tensors: dict[str, Tensor] = {}
    return state_text(encode(state, tensors, "state")), tensors


def encode(value: Any, tensors: dict[str, Tensor], path: str) -> Any:
    """Return the JSON form of a value, and add flat copies of its tensors to ``tensors``.

    A tensor becomes ``{"$tensor": [name, shape]}``, a tuple ``{"$tuple": [...]}`` and a number that
    JSON lacks ``{"$number": "inf"}``. ``contents.py`` has the way back, for a run that resumes. The
    names of the tensors begin with ``path``. Raises ``CheckpointError`` for other objects.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return {"$number": str(float(value))}
    if isinstance(value, str | int | float | None):
        return value

    if isinstance(value, tuple):
        return {"$tuple": encode([*value], tensors, path)}
    if isinstance(value, list):
        return [encode(item, tensors, f"{path}.{number}") for number, item in enumerate(value)]
    if isinstance(value, Mapping) and all(isinstance(key, str) and key[:1] != "$" for key in value):
        return {key: encode(item, tensors, f"{path}.{key}") for key, item in value.items()}

    if isinstance(value, Tensor) and value.dtype in CODES:
        tensors[path] = value.detach().to("cpu", copy=True).reshape(-1)
        return {"$tensor": [path, list(value.shape)]}

    raise CheckpointError(
        f"{path}: {value!r:.80} is neither JSON nor a tensor that safetensors holds"
    )


def state_text(state: Mapping[str, Any]) -> bytes:
    """Return the text of state.json. Refuse a text that is too large to be read again."""
    text = (json.dumps(state, indent=1, allow_nan=False) + "\n").encode()
    if len(text) > LARGEST_JSON:
        raise CheckpointError(f"{STATE}: cannot be written: more than {LARGEST_JSON} bytes")
    return text


def read_extras(parts: Parts) -> dict[str, bytes]:
    """Return the small files beside an exported model, by their names in a checkpoint."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts.save_beside(folder)

        files = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        # A name that a reader would refuse is refused here.
        return {f"extras/{file}": path_inside(folder, file).read_bytes() for file in files}
