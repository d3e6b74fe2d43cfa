"""Read weights out of checkpoints that other programs wrote: torch's distributed ones and
DeepSpeed's.

Their files are pickles, which can run code when they are read. So they are read by torch's
weights-only reader, or one like it, that knows tensors and the few plain classes named here and
refuses everything else.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Mapping
from enum import EnumMeta
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoint.untrusted import path_inside
from ..errors import CheckpointError


class ExternalCheckpoint:
    """The weights of a folder; ``shapes`` holds shape and dtype of each before any is read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}

    def read(self, name: str) -> Tensor:
        """Read one whole tensor."""
        raise NotImplementedError


def open_external(folder: Path) -> ExternalCheckpoint:
    """Open a folder with the reader of the program that wrote it.

    Raises:
        CheckpointError: no known program did, or the files hold more than weights.
    """
    for place in (
        folder,
        *sorted(path for path in folder.glob("*") if path.is_dir() and not path.is_symlink()),
    ):
        if (place / ".metadata").exists():
            if place.name.startswith("optimizer"):
                continue
            return DistributedCheckpoint(place)
        if any(place.glob("*_optim_states.pt")):
            return DeepSpeedCheckpoint(place)
    raise CheckpointError(
        f"{folder}: holds no checkpoint of torch.distributed (.metadata) or of DeepSpeed (*_optim_states.pt)"
    )


class DistributedCheckpoint(ExternalCheckpoint):
    """A folder of ``torch.distributed.checkpoint``, as Accelerate writes it under FSDP."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        metadata = _read_metadata(folder / ".metadata")
        self._stored = metadata.storage_data
        self._stored_as: dict[str, str] = {}
        for name, entry in metadata.state_dict_metadata.items():
            if hasattr(entry, "chunks"):
                own = name.removeprefix("model.") if _all_below(metadata, "model.") else name
                self._stored_as[own] = name
                self.shapes[own] = (tuple(entry.size), entry.properties.dtype)

    def read(self, name: str) -> Tensor:
        stored_as = self._stored_as[name]
        shape, dtype = self.shapes[name]
        whole = torch.empty(shape, dtype=dtype)
        filled = 0
        for index, place in self._stored.items():
            if index.fqn != stored_as:
                continue
            if place.transform_descriptors:
                raise CheckpointError(
                    f"{self.folder}: {name} is stored transformed ({place.transform_descriptors})"
                )
            with open(path_inside(self.folder, place.relative_path), "rb") as file:
                file.seek(place.offset)
                part = torch.load(
                    io.BytesIO(file.read(place.length)), map_location="cpu", weights_only=True
                )
            offsets = index.offset or (0,) * part.dim()
            whole[
                tuple(slice(low, low + size) for low, size in zip(offsets, part.shape, strict=True))
            ] = part
            filled += part.numel()
        if filled != whole.numel():
            raise CheckpointError(
                f"{self.folder}: {filled} of {whole.numel()} elements of {name} are there"
            )
        return whole


def _all_below(metadata: Any, prefix: str) -> bool:
    return all(name.startswith(prefix) for name in metadata.state_dict_metadata)


# What torch.distributed.checkpoint writes into .metadata: plain data, all of it.
_METADATA = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "BytesStorageMetadata",
        "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *(name for name, value in vars(torch).items() if isinstance(value, torch.dtype))},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}  # fmt: skip


def _member(enumeration: Any, name: Any) -> Any:
    """Stand in for ``getattr``, as which Python 3.11.0 to 3.11.3 pickle a member of an enumeration:
    members only.
    """
    if isinstance(enumeration, EnumMeta) and name in enumeration.__members__:
        return enumeration[name]
    raise pickle.UnpicklingError(f"it wants {name!r} of {enumeration!r}")


class _MetadataReader(pickle.Unpickler):
    """An unpickler that knows a fixed list of names; torch's weights-only reader does not know this
    file's protocol.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _member
        if name not in _METADATA.get(module, ()):
            raise pickle.UnpicklingError(f"it wants {module}.{name}")
        return super().find_class(module, name)


def _read_metadata(path: Path) -> Any:
    path_inside(path.parent, path.name)
    try:
        with open(path, "rb") as file:
            return _MetadataReader(file).load()
    except Exception as error:  # (whatever a forged file makes of the reader)
        raise CheckpointError(
            f"{path}: refused, for it is more than a list of tensors: {error}"
        ) from None


class DeepSpeedCheckpoint(ExternalCheckpoint):
    """A folder of DeepSpeed's stage 1, 2 or 3: full-precision weights as slices of flat groups, one
    file a rank.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        models = [_load(path) for path in _ranked(folder, "*_model_states.pt")]
        optimizers = [
            _load(path)["optimizer_state_dict"] for path in _ranked(folder, "*_optim_states.pt")
        ]
        stage, world = int(optimizers[0]["zero_stage"]), optimizers[0]["partition_count"]
        world = max(world) if isinstance(world, list) else world
        if len(optimizers) != world:
            raise CheckpointError(
                f"{folder}: {len(optimizers)} of {world} *_optim_states.pt are there"
            )
        self._partitioned = stage == 3
        key = "fp32_flat_groups" if self._partitioned else "single_partition_of_fp32_groups"
        self._flat: list[list[Tensor]] = [list(map(torch.flatten, one[key])) for one in optimizers]
        self._models, first = models, models[0]
        paddings = optimizers[0].get("param_alignment_paddings")
        self._places: dict[str, tuple[int, int]] = {}
        offset = 0
        for group, shapes in enumerate(first["param_shapes"]):
            # Slices of all parameters follow each other through all groups; whole parameters begin
            # anew in each.
            offset = offset if self._partitioned else 0
            for number, (name, shape) in enumerate(shapes.items()):
                self._places[name] = (group, offset)
                self.shapes[name] = (tuple(shape), torch.float32)
                numel = math.prod(shape)
                offset += -(-numel // world) if self._partitioned else numel
                offset += paddings[group][number] if paddings and not self._partitioned else 0
        self._frozen: Mapping[str, Any] = first.get("frozen_param_shapes") or {}
        for name, shape in self._frozen.items():
            self.shapes[name] = (tuple(shape), first["frozen_param_fragments"][name].dtype)
        for name in first["buffer_names"]:
            self.shapes[name] = (tuple(first["module"][name].shape), first["module"][name].dtype)

    def read(self, name: str) -> Tensor:
        shape, _ = self.shapes[name]
        if name in self._places:
            return self._trained(*self._places[name], math.prod(shape)).view(shape)
        if name in self._frozen:
            parts = [model["frozen_param_fragments"][name].flatten() for model in self._models]
            whole = torch.cat(parts) if self._partitioned else parts[0]
            return whole[: math.prod(shape)].view(shape)
        tensor: Tensor = self._models[0]["module"][name]
        return tensor

    def _trained(self, group: int, offset: int, numel: int) -> Tensor:
        if not self._partitioned:
            return _cut([groups[group] for groups in self._flat], offset, numel)
        size = -(-numel // len(self._flat))  # every rank has a slice of every parameter
        return torch.cat([_cut(groups, offset, size) for groups in self._flat])[:numel]


def _cut(parts: list[Tensor], offset: int, numel: int) -> Tensor:
    """Take elements out of flat tensors that follow each other."""
    ends = [0]
    for part in parts:
        ends.append(ends[-1] + part.numel())
    return torch.cat(
        [
            part[max(0, offset - low) : offset + numel - low]
            for part, (low, high) in zip(parts, pairwise(ends), strict=True)
            if low < offset + numel and offset < high
        ]
    )


def _ranked(folder: Path, pattern: str) -> list[Path]:
    """List files in the order of the ranks in their names."""

    def rank(path: Path) -> int:
        found = [int(word) for word in path.name.split("_") if word.isdigit()]
        return found[0] if found else 0

    return sorted(folder.glob(pattern), key=rank)


def _load(path: Path) -> Any:
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address
    from torch.serialization import safe_globals

    path_inside(path.parent, path.name)
    try:
        # mmap: the optimizer's state, which nobody reads, does not come into memory.
        known = [
            fragment_address,
            ZeroStageEnum,
            LossScaler,
            DynamicLossScaler,
            (_member, "builtins.getattr"),
        ]
        with safe_globals(known):
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # (whatever a forged file makes of the reader)
        raise CheckpointError(f"{path}: refused, for it holds more than weights: {error}") from None
