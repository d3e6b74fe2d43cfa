"""The exported model: safetensors in full precision, written by the main process, one tensor in memory at a time.

The names and shapes are those of the model that the task built, whatever the strategy; shared tensors
are written once. For a transformers model the folder also holds its configuration, so that
``from_pretrained`` loads it.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import IO

import torch
from torch import Tensor, nn

from .control import Control
from .errors import CheckpointError
from .strategies import Strategy
from .task import Task

MODEL_FILE = "model.safetensors"

# https://huggingface.co/docs/safetensors: eight bytes of header length, a JSON header, then the raw tensors.
_DTYPES = {
    torch.float64: ("F64", 8), torch.float32: ("F32", 4), torch.float16: ("F16", 2), torch.bfloat16: ("BF16", 2),
    torch.int64: ("I64", 8), torch.int32: ("I32", 4), torch.int16: ("I16", 2), torch.int8: ("I8", 1),
    torch.uint8: ("U8", 1), torch.bool: ("BOOL", 1),
}  # fmt: skip


def export_model(strategy: Strategy, control: Control, task: Task, directory: Path) -> None:
    """Write the model to ``directory``, which then replaces what stood there. Every rank enters."""
    entries = list(strategy.named_tensors())
    temporary = directory.with_name(f".{directory.name}.part")
    main = strategy.accelerator.is_main_process
    opened: list[IO[bytes]] = []

    def begin() -> None:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        opened.append(open(temporary / MODEL_FILE, "wb"))  # noqa: SIM115  (closed in `finish`)
        opened[0].write(_header((name, shape, dtype) for name, shape, dtype, _ in entries))

    def finish() -> None:
        opened[0].flush()
        os.fsync(opened[0].fileno())
        opened[0].close()
        _save_config(strategy.model, temporary)
        task.save_extras(temporary)
        _replace(temporary, directory)

    control.on_main(begin)
    failure: OSError | None = None
    for name, _, dtype, handle in entries:
        tensor = strategy.gather(name, handle)
        if main and failure is None:
            try:
                _write(opened[0], tensor.to(dtype).contiguous())
            except OSError as error:
                failure = error  # told to all at the end: the others are inside a collective now

    def finish_or_tell() -> None:
        if failure is not None:
            raise CheckpointError(f"the model could not be written to {temporary}: {failure}")
        finish()

    control.on_main(finish_or_tell)


def load_export(model: nn.Module, directory: str | Path) -> None:
    """Load an exported model into a freshly built one, strictly.

    Raises:
        CheckpointError: names or shapes differ.
    """
    from safetensors.torch import load_model

    try:
        missing, unexpected = load_model(model, str(Path(directory) / MODEL_FILE))
    except (RuntimeError, OSError) as error:
        raise CheckpointError(f"{directory}: does not hold this model: {error}") from None
    assert not missing and not unexpected, "load_model is strict"


def _header(entries: Iterable[tuple[str, tuple[int, ...], torch.dtype]]) -> bytes:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape, dtype in entries:
        kind, width = _DTYPES[dtype]
        end = offset + math.prod(shape) * width
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write(file: IO[bytes], tensor: Tensor) -> None:
    file.write(tensor.reshape(-1).view(torch.uint8).numpy().data)


def _save_config(model: nn.Module, directory: Path) -> None:
    from .strategies.base import unwrapped

    config = getattr(unwrapped(model), "config", None)
    save = getattr(config, "save_pretrained", None)
    if save is not None:
        save(directory)
        generation = getattr(unwrapped(model), "generation_config", None)
        if generation is not None:
            generation.save_pretrained(directory)


def _replace(temporary: Path, directory: Path) -> None:
    if directory.exists():
        old = directory.with_name(f".{directory.name}.old")
        shutil.rmtree(old, ignore_errors=True)
        os.replace(directory, old)
        os.replace(temporary, directory)
        shutil.rmtree(old)
    else:
        os.replace(temporary, directory)
