"""The exported model: safetensors in full precision, written by the main process, one tensor in memory at a time.

The names and shapes are those of the model that the task built, whatever the strategy; shared tensors
are written once. For a transformers model the folder also holds its configuration, so that
``from_pretrained`` loads it.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import IO

from torch import nn

from .control import Control
from .errors import CheckpointError
from .strategies import Strategy
from .task import Task
from .tensorfile import header, raw

MODEL_FILE = "model.safetensors"


def export_model(strategy: Strategy, control: Control, task: Task, directory: Path) -> None:
    """Write the model to ``directory``, which then replaces what stood there. Every rank enters."""
    entries = list(strategy.named_tensors())
    temporary = hidden(directory)
    main = strategy.accelerator.is_main_process
    opened: list[IO[bytes]] = []

    def begin() -> None:
        make_anew(temporary)
        opened.append(open(temporary / MODEL_FILE, "wb"))  # noqa: SIM115  (closed in `finish`)
        opened[0].write(header(((name, shape, dtype) for name, shape, dtype, _ in entries), {"format": "pt"}))

    def finish() -> None:
        opened[0].flush()
        os.fsync(opened[0].fileno())
        opened[0].close()
        save_config(strategy.model, temporary)
        task.save_extras(temporary)
        take_place(temporary, directory)

    control.on_main(begin)
    failure: OSError | None = None
    for name, _, dtype, handle in entries:
        tensor = strategy.gather(name, handle)
        if main and failure is None:
            try:
                opened[0].write(raw(tensor.to(dtype).contiguous()))
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


def save_config(model: nn.Module, directory: Path) -> None:
    """Write the configuration of a transformers model; other models have none."""
    from .strategies.tensors import unwrapped

    config = getattr(unwrapped(model), "config", None)
    save = getattr(config, "save_pretrained", None)
    if save is not None:
        save(directory)
        generation = getattr(unwrapped(model), "generation_config", None)
        if generation is not None:
            generation.save_pretrained(directory)


def hidden(directory: Path) -> Path:
    """The folder in which a new ``directory`` is written, before it takes its place."""
    return directory.with_name(f".{directory.name}.part")


def make_anew(folder: Path) -> None:
    """Make an empty folder, whatever a killed process left there."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)


def take_place(temporary: Path, directory: Path) -> None:
    """Give a finished folder its name; what had it is deleted afterwards."""
    old = directory.with_name(f".{directory.name}.old")
    if directory.exists():
        shutil.rmtree(old, ignore_errors=True)
        os.replace(directory, old)
    os.replace(temporary, directory)
    shutil.rmtree(old, ignore_errors=True)
