"""The exported model: safetensors in full precision, written by the main process, one tensor in memory at a time.

The names and shapes are those of the model that the task built, whatever the strategy; shared tensors
are written once. For a transformers model the folder also holds its configuration, so that
``from_pretrained`` loads it; of a peft model it holds the adapter, as peft loads it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import torch
from torch import nn

from ..distributed.agreement import Control
from ..errors import CheckpointError
from ..strategies import Strategy
from ..strategies.tensors import canonical_names, canonical_state, unwrapped
from ..task import Task
from ..text import listed
from .adapters import ADAPTER_FILE, adapter_names, is_adapted, save_adapter_config
from .safetensors_io import can_hold, header, raw

MODEL_FILE = "model.safetensors"


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """What goes into the file of an exported model.

    Args:
        file: its name.
        names: what the tensors are called in it, by their names in the model; None: all of them, as they are.
    """

    file: str = MODEL_FILE
    names: Mapping[str, str] | None = None

    @classmethod
    def of(cls, model: nn.Module) -> ModelFile:
        """Look at an unprepared model: of an adapted one only the adapter is written."""
        names = adapter_names(model)
        return cls(file=ADAPTER_FILE, names=names) if names else cls()

    def name(self, name: str) -> str | None:
        """What a tensor is called in the file; None where it is left out."""
        return name if self.names is None else self.names.get(name)


def export_model(strategy: Strategy, control: Control, task: Task, form: ModelFile, directory: Path) -> None:
    """Write the model to ``directory``, which then replaces what stood there. Collective: call on every rank.

    Args:
        form: what of it is written, and under which names.

    Raises:
        CheckpointError: it cannot be written, or safetensors cannot hold it; what stood there before stays.
    """
    changed = [problem for problem in control.gather(changed_buffer(strategy)) if problem]
    if changed:
        raise CheckpointError(changed[0])
    strategy.agree_buffers()
    entries = [entry for entry in strategy.named_tensors() if form.name(entry[0]) is not None]
    temporary = hidden(directory)
    main = strategy.accelerator.is_main_process
    opened: list[IO[bytes]] = []

    def begin() -> None:
        make_anew(temporary)
        opened.append(open(temporary / form.file, "wb"))  # noqa: SIM115  (closed in `finish` or `guarded`)
        opened[0].write(header([(str(form.name(n)), shape, dtype) for n, shape, dtype, _ in entries], {"format": "pt"}))

    def finish() -> None:
        opened[0].flush()
        os.fsync(opened[0].fileno())
        opened[0].close()
        save_config(strategy.model, temporary)
        task.save_extras(temporary)
        check_model_file(temporary / form.file)
        take_place(temporary, directory)

    def guarded(work: Callable[[], None]) -> None:
        try:
            if failure is not None:
                raise failure
            work()
        except (OSError, CheckpointError) as error:
            if opened:
                opened[0].close()
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointError(f"the model could not be written to {directory}: {error}") from None

    failure: OSError | None = None
    control.on_main(lambda: guarded(begin))
    for name, _, dtype, handle in entries:
        tensor = strategy.gather(name, handle)
        if main and failure is None:
            try:
                opened[0].write(raw(tensor.to(dtype).contiguous()))
            except OSError as error:
                failure = error  # told to all at the end: the others are inside a collective now
    control.on_main(lambda: guarded(finish))


def changed_buffer(strategy: Strategy) -> str:
    """Say which buffer of this rank has another shape than the task built it with; empty if none has."""
    for name, shape, _, handle in strategy.named_tensors():
        if not isinstance(handle, nn.Parameter) and tuple(handle.shape) != shape:
            return (
                f"the buffer {name} was built with shape {shape} and has {tuple(handle.shape)} now: a file of the "
                "model cannot hold it; give it its full shape from the start, or register it with persistent=False"
            )
    return ""


def check_storable(model: nn.Module) -> None:
    """Hold the parameters and buffers of an unprepared model to the dtypes of safetensors.

    Raises:
        CheckpointError: there is one that no file could hold.
    """
    for name, (_, dtype) in canonical_names(model).items():
        if not can_hold(dtype):
            raise CheckpointError(
                f"{name}: safetensors has no {str(dtype).removeprefix('torch.')}: neither the model nor a checkpoint "
                "could be written; keep it in another dtype (complex numbers as torch.view_as_real), or register it as "
                "a buffer with persistent=False"
            )


def check_model_file(path: Path) -> None:
    """Have the safetensors library read the header of a file that was just written.

    Raises:
        CheckpointError: it cannot.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt"):
            pass
    except SafetensorError as error:
        raise CheckpointError(f"{path}: safetensors cannot read what was written: {error}") from None


def exported_file(directory: Path) -> Path | None:
    """Return the file with the tensors of an exported model, or of its adapter; None if there is none."""
    return next((path for path in (directory / MODEL_FILE, directory / ADAPTER_FILE) if path.is_file()), None)


def load_export(model: nn.Module, directory: str | Path) -> None:
    """Load an exported model into a freshly built one, strictly; of a peft model the adapter.

    Raises:
        CheckpointError: names or shapes differ.
    """
    from safetensors.torch import load_file, load_model

    form = ModelFile.of(model)
    if form.names is not None and (Path(directory) / form.file).exists():
        found, own = load_file(Path(directory) / form.file), dict(canonical_state(model))
        wrong = [
            name for name, other in form.names.items() if other not in found or found[other].shape != own[name].shape
        ]
        if wrong or len(found) != len(form.names):
            raise CheckpointError(f"{directory}: does not hold this adapter: {listed(wrong or sorted(found))}")
        with torch.no_grad():
            for name, other in form.names.items():
                own[name].copy_(found[other])
        return
    try:
        missing, unexpected = load_model(model, str(Path(directory) / MODEL_FILE))
    except (RuntimeError, OSError) as error:
        raise CheckpointError(f"{directory}: does not hold this model: {error}") from None
    assert not missing and not unexpected, "load_model is strict"


def save_config(model: nn.Module, directory: Path) -> None:
    """Write the configuration of a transformers model, or of a peft model's adapter; other models have none."""
    if is_adapted(unwrapped(model)):
        return save_adapter_config(unwrapped(model), directory)
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
