"""The exported model: safetensors in full precision, written by the main process, one tensor in
memory at a time.

The names and shapes are those of the model that the task built, whatever the strategy; shared
tensors are written once. For a transformers model the folder also holds its configuration, so that
``from_pretrained`` loads it; of a peft model it holds the adapter, as peft loads it.
"""

from __future__ import annotations

import copy
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..config.paths import not_local
from ..distributed.agreement import Agreement
from ..errors import CheckpointError, TrainerError
from ..strategies import Strategy
from ..strategies.tensors import canonical_names, canonical_state, unwrapped
from ..task import Pretrained
from ..text import listed
from .disk import delete, part_of, publish, write_file
from .ranges import of_model_folder
from .safetensors_io import METADATA, can_hold, header, raw, read_header

MODEL_FILE = "model.safetensors"
ADAPTER_FILE = "adapter_model.safetensors"


class Stateful(Protocol):
    """What has a state of its own."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class StatefulTask(Stateful, Protocol):
    """What is learnt, and writes files beside the model."""

    def save_extras(self, directory: Path) -> None: ...

    def model_card(self, run: Mapping[str, Any]) -> str: ...


@dataclass(frozen=True, kw_only=True)
class ModelFile:
    """What goes into the file of an exported model.

    Args:
        file: its name.
        names: what the tensors are called in it, by their names in the model; None: all of them, as
            they are.
        dtypes: what tensors are rounded to in it, by their names in the model; the others stay as
            they are.
    """

    file: str = MODEL_FILE
    names: Mapping[str, str] | None = None
    dtypes: Mapping[str, torch.dtype] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, dtypes: Mapping[str, torch.dtype] | None = None) -> ModelFile:
        """Look at an unprepared model: of an adapted one only the adapter is written."""
        dtypes = dtypes or {}
        if not _is_adapted(model):
            return cls(dtypes=dtypes)
        from .adapters import adapter_names

        names = adapter_names(model)
        return cls(file=ADAPTER_FILE, names=names, dtypes=dtypes) if names else cls(dtypes=dtypes)

    def dtype(self, name: str, own: torch.dtype) -> torch.dtype:
        """Return the dtype of a tensor in the file.

        Args:
            own: what it would be as it is.
        """
        return self.dtypes.get(name, own)

    def most_of(self) -> torch.dtype | None:
        """Return the dtype that most of the rounded tensors get; None where none is rounded."""
        counts = Counter(
            dtype for name, dtype in self.dtypes.items() if self.name(name) is not None
        )
        return counts.most_common(1)[0][0] if counts else None

    def name(self, name: str) -> str | None:
        """Return what a tensor is called in the file; None where it is left out."""
        return name if self.names is None else self.names.get(name)


def export_model(
    strategy: Strategy,
    agreement: Agreement,
    form: ModelFile,
    directory: Path,
    save_beside: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write the model to ``directory``, which then replaces what stood there. Collective: call on
    every rank.

    Args:
        form: what of the model is written, and under which names.
        save_beside: writes small files to the same folder, on the main process.

    Raises:
        CheckpointError: it cannot be written, or safetensors cannot hold it; what stood there
            before stays.
    """
    if problem := next(filter(None, agreement.gather(changed_buffer(strategy))), ""):
        raise CheckpointError(problem)
    strategy.sync_buffers()
    named = [entry for entry in strategy.named_tensors() if form.name(entry[0]) is not None]
    tensors = (
        strategy.gather(name, handle).to(form.dtype(name, dtype))
        for name, _, dtype, handle in named
    )

    if strategy.accelerator.is_main_process:
        entries = [
            (str(form.name(name)), shape, form.dtype(name, dtype))
            for name, shape, dtype, _ in named
        ]
        try:
            write_model(directory, form.file, entries, tensors, save_beside)
        except CheckpointError as error:
            problem = str(error)
    for _ in tensors:
        # the other ranks; and the main one, where writing has failed while the others are inside a
        # collective
        pass
    if problem := next(filter(None, agreement.gather(problem)), ""):
        raise CheckpointError(problem)


def write_model(
    directory: Path,
    file_name: str,
    entries: Iterable[tuple[str, tuple[int, ...], torch.dtype]],
    tensors: Iterable[Tensor],
    save_beside: Callable[[Path], None],
) -> None:
    """Write ``tensors``, one at a time, in the order of ``entries``, and small files beside them,
    as ``directory``.

    Raises:
        CheckpointError: it cannot be written, or not be read by the safetensors library; nothing
            has changed then.
    """
    if not_local(directory):
        raise CheckpointError(f"{directory}: {not_local(directory)}")
    part = part_of(directory)
    try:
        delete(part)
        part.mkdir(parents=True)
        write_file(
            part / file_name,
            chain([header(entries)], (raw(tensor.contiguous()) for tensor in tensors)),
        )
        save_beside(part)
        read_header(part / file_name)
        publish(directory)
    except (OSError, TrainerError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise CheckpointError(f"the model could not be written to {directory}: {error}") from None


def changed_buffer(strategy: Strategy) -> str:
    """Say which buffer of this rank has another shape than the task built it with; empty if none
    has.
    """
    for name, shape, _, handle in strategy.named_tensors():
        if not isinstance(handle, nn.Parameter) and tuple(handle.shape) != shape:
            return (
                f"the buffer {name} was built with shape {shape} and has {tuple(handle.shape)} now: a file of the "
                "model cannot hold it; give it its full shape from the start, or register it with persistent=False"
            )
    return ""


def check_storable(model: nn.Module) -> None:
    """Hold an unprepared model to safetensors; ``CheckpointError`` names a tensor that it cannot
    hold.
    """
    for name, (_, dtype) in canonical_names(model).items():
        if name == METADATA:
            raise CheckpointError(
                f"{name}: no tensor of a safetensors file can have this name; give it another one"
            )
        if not can_hold(dtype):
            raise CheckpointError(
                f"{name}: safetensors has no {str(dtype).removeprefix('torch.')}: neither the model nor a checkpoint "
                "could be written; keep it in another dtype (complex numbers as torch.view_as_real), or register it as "
                "a buffer with persistent=False"
            )


def exported_file(directory: Path) -> Path | None:
    """Return the file with the tensors of an exported model, or of its adapter; None if there is
    none.
    """
    return next(
        (path for path in (directory / MODEL_FILE, directory / ADAPTER_FILE) if path.is_file()),
        None,
    )


def load_export(model: nn.Module, directory: str | Path) -> None:
    """Load an exported model into a freshly built one, strictly; of a peft model the adapter.

    Raises:
        CheckpointError: names or shapes differ.
    """
    from safetensors.torch import load_file

    form, folder, filled = ModelFile.of(model), Path(directory), set()
    form = form if (folder / form.file).exists() else ModelFile()
    try:
        found = load_file(folder / form.file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{directory}: holds no model: {error}") from None
    own = [
        (form.name(name), tensor) for name, tensor in canonical_state(model)
    ]  # shared ones under all their names
    for name, tensor in own:
        if name in found and found[name].shape == tensor.shape:
            tensor.detach().copy_(found.pop(name))
            filled.add(id(tensor))
    if (
        wrong := {name for name, tensor in own if name is not None and id(tensor) not in filled}
        | found.keys()
    ):
        raise CheckpointError(f"{directory}: does not hold this model: {listed(sorted(wrong))}")


def _is_adapted(model: nn.Module) -> bool:
    """Tell whether a model is one of peft; that library is imported already then."""
    peft = sys.modules.get("peft")
    return peft is not None and isinstance(model, peft.PeftModel)


def export_dtypes(
    model: nn.Module, wanted: str, source: Pretrained | None
) -> dict[str, torch.dtype]:
    """Choose what the tensors of an unprepared model are rounded to in its exported file, by name.

    Args:
        wanted: a dtype, or auto: that of the files which each tensor comes from.
        source: where they stand; None for a model that begins anew or is built with its values.
    """
    own = {
        name: tensor.dtype for name, tensor in canonical_state(model) if tensor.is_floating_point()
    }
    if wanted != "auto":
        return dict.fromkeys(own, getattr(torch, wanted))
    if source is None:
        return {}
    try:
        store, _ = of_model_folder(Path(source.folder), source.names)
    except CheckpointError:  # a run that goes on from a checkpoint does without these files
        return {}
    stored = {
        name: store.dtype("parameter", name) for name in store.names("parameter") if name in own
    }
    return {
        name: dtype for name, dtype in stored.items() if dtype in (torch.bfloat16, torch.float16)
    }


def save_config(model: nn.Module, directory: Path, dtype: torch.dtype | None = None) -> None:
    """Write the configuration of a transformers model, or of a peft model's adapter; other models
    have none.

    Args:
        dtype: of the exported file; None: as the configuration says.
    """
    model = unwrapped(model)
    configs: list[Any] = [getattr(model, name, None) for name in ("config", "generation_config")]
    if _is_adapted(model):
        from .adapters import save_adapter_config

        return save_adapter_config(model, directory)
    if dtype is not None and hasattr(configs[0], "save_pretrained"):
        configs[0] = copy.deepcopy(configs[0])
        set_config_dtype(configs[0], dtype)
    if hasattr(configs[0], "save_pretrained"):
        for config in filter(None, configs):
            config.save_pretrained(directory)


def set_config_dtype(config: Any, dtype: torch.dtype) -> None:
    """Have a transformers configuration, and those of its parts, say in which dtype the model is."""
    parts = [config, *(getattr(config, name, None) for name in getattr(config, "sub_configs", ()))]
    for part in parts:
        if hasattr(part, "dtype"):
            part.dtype = dtype
