"""The exported model: a safetensors file that the main process writes, one tensor at a time.

The names and shapes are those of the model that the task built, whatever the strategy. Shared
tensors are written once. ``from_pretrained`` loads the folder of a transformers model.
"""

from __future__ import annotations

import copy
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from ..config.paths import not_local
from ..distributed.agreement import Agreement
from ..errors import CheckpointError, TrainerError
from ..private.transformers import loader_of
from ..strategies import Strategy
from ..strategies.tensors import canonical_names, canonical_state
from ..task import Pretrained, SavedPart, Task, within
from ..text import in_one_line
from .disk import delete, part_of, publish, write_file
from .safetensors_io import CODES, dtype_name, header, raw, read_header

MODEL_FILE = "model.safetensors"


class ModelFile(NamedTuple):
    """The form of an exported model: which tensors the file holds, under which names.

    Args:
        names: the name of a tensor in the file, by the name in the model. None: all tensors, under
            the names in the model.
        dtypes: the dtype of a tensor in the file, by the name in the model. Other tensors keep
            their dtypes.
        save_config: writes the configuration. None: the configuration of the model is written.
        load: loads the folder as users do. None: there is no loader beside ``load_export``.
    """

    file: str = MODEL_FILE
    names: Mapping[str, str] | None = None
    dtypes: Mapping[str, torch.dtype] = {}
    save_config: Callable[[Path], None] | None = None
    load: Callable[[Path], Any] | None = None

    @classmethod
    def of(
        cls,
        task: Task,
        model: nn.Module,
        dtypes: Mapping[str, torch.dtype],
    ) -> ModelFile:
        """Return the file of the product of a task: of a part of ``model``, or of the whole."""
        product = model.get_submodule(task.exported)
        part = task.saved_part(product)
        if part is None:
            every = {name: name for name in canonical_state(product)}
            part = SavedPart(file=MODEL_FILE, names=every, load=loader_of(product))
            if not task.exported:
                return cls(dtypes=dtypes, load=part.load)
        names = {within(task.exported, name): in_file for name, in_file in part.names.items()}
        return cls(**{**vars(part), "names": names}, dtypes=dtypes)

    def rounded_to(self) -> torch.dtype | None:
        """Return the dtype that the first of the rounded tensors gets. None if none is rounded."""
        return next((dtype for name, dtype in self.dtypes.items() if self.name(name)), None)

    def name(self, name: str) -> str | None:
        """Return the name of a tensor in the file. None for a tensor that is left out."""
        return name if self.names is None else self.names.get(name)


def export_model(
    strategy: Strategy,
    agreement: Agreement,
    form: ModelFile,
    directory: Path,
    save_beside: Callable[[Path], None],
) -> None:
    """Write the model to ``directory``, which replaces a folder of this name.

    Collective: call on every rank. ``save_beside`` writes small files, on the main process.

    Raises:
        CheckpointError: the model cannot be written. The folder of before stays.
    """
    problem = next(filter(None, agreement.gather(changed_buffer(strategy))), "")
    if problem:
        raise CheckpointError(problem)
    strategy.sync_copies(agreement.gather)

    kept = [
        (name, handle, (name_in_file, shape, form.dtypes.get(name, own_dtype)))
        for name, shape, own_dtype, handle in strategy.named_tensors()
        if (name_in_file := form.name(name)) is not None
    ]
    # A step of this generator gathers a tensor, on all ranks.
    tensors = (strategy.gather(name, handle).to(entry[2]) for name, handle, entry in kept)

    def write() -> None:
        try:
            write_model(directory, form.file, [entry for *_, entry in kept], tensors, save_beside)
        finally:
            deque(tensors, 0)  # the other ranks take part in gathering the rest, too

    if agreement.rank != 0:
        deque(tensors, 0)
    agreement.run_on_main(write)


def write_model(
    directory: Path,
    file_name: str,
    entries: Iterable[tuple[str, tuple[int, ...], torch.dtype]],
    tensors: Iterable[Tensor],
    save_beside: Callable[[Path], None],
) -> None:
    """Write a model file, one tensor at a time, and small files beside it, as ``directory``.

    Args:
        entries: name, shape and dtype of each tensor, in the order of ``tensors``.

    Raises:
        CheckpointError: the model cannot be written. The folder of before stays.
    """
    problem = not_local(directory)
    if problem:
        raise CheckpointError(f"{directory}: {problem}")

    part = part_of(directory)
    try:
        delete(part)
        part.mkdir(parents=True)
        write_file(part / file_name, chain([header(entries)], map(raw, tensors)))
        save_beside(part)
        read_header(part / file_name)
        publish(directory)
    except (OSError, TrainerError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise CheckpointError(f"the model could not be written to {directory}: {error}") from None


def changed_buffer(strategy: Strategy) -> str:
    """Return a message about a buffer whose shape has changed. Empty without such a buffer."""
    for name, shape, _, handle in strategy.named_tensors():
        now = tuple(handle.shape)
        if now != shape and not isinstance(handle, nn.Parameter):
            return (
                f"buffer {name} was built with shape {shape} and has {now} now; build the buffer "
                "in full shape, or register with persistent=False"
            )
    return ""


def check_storable(model: nn.Module) -> None:
    """Raise ``CheckpointError`` for a tensor of a model that safetensors cannot hold."""
    for name, (_, dtype) in canonical_names(model).items():
        if dtype not in CODES:
            raise CheckpointError(
                f"{name}: safetensors has no {dtype_name(dtype)}; take another dtype, or register "
                "a buffer with persistent=False"
            )


def exported_file(directory: Path) -> Path | None:
    """Return the tensor file of an exported model, or of a saved part. None without a file."""
    return min(directory.glob("*.safetensors"), default=None)


def export_dtypes(
    model: nn.Module, wanted: str, sources: Sequence[Pretrained]
) -> dict[str, torch.dtype]:
    """Return the dtypes to which tensors are rounded in the exported file, by name.

    Args:
        model: not prepared yet.
        wanted: a dtype, or ``auto``: that of the files in ``sources`` from which a tensor is read.
    """
    own = {name for name, tensor in canonical_state(model).items() if tensor.is_floating_point()}
    if wanted != "auto":
        return dict.fromkeys(own, getattr(torch, wanted))
    if not sources:
        return {}

    from .ranges import of_pretrained

    try:
        _, entries = of_pretrained(sources)
    except CheckpointError:  # a run that resumes does not need these files
        return {}
    return {
        name: entry.dtype
        for name, entry in entries.items()
        if name in own and entry.dtype in (torch.bfloat16, torch.float16)
    }


def save_config(model: nn.Module, directory: Path, dtype: torch.dtype | None = None) -> None:
    """Write the configuration of a transformers model, for a file of ``dtype`` if that is given."""
    # A wrapper with the configuration of the wrapped model has other names for the tensors.
    if not hasattr(type(model), "config_class"):
        return
    config: Any = model.config
    if dtype is not None:
        config = copy.deepcopy(config)
        set_config_dtype(config, dtype)
    for part in (config, getattr(model, "generation_config", None)):
        if part is not None:
            part.save_pretrained(directory)


def set_config_dtype(config: Any, dtype: torch.dtype) -> None:
    """Set the dtype in a transformers configuration and in the configurations of the parts."""
    names = getattr(config, "sub_configs", ())
    for part in (config, *(getattr(config, name, None) for name in names)):
        if hasattr(part, "dtype"):
            part.dtype = dtype


def load_export(model: nn.Module, directory: str | Path) -> None:
    """Load an exported model into a freshly built model. All names and shapes must agree.

    Raises:
        CheckpointError: names or shapes differ, or there is no model.
    """
    from safetensors.torch import load_model

    try:
        load_model(model, Path(directory) / MODEL_FILE)
    except (OSError, SafetensorError, RuntimeError) as error:
        reason = in_one_line(error)
        raise CheckpointError(f"{directory}: does not hold this model: {reason}") from None
