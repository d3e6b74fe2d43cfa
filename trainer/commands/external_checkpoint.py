"""Read weights from checkpoints that other programs wrote: torch.distributed's and DeepSpeed's.

Their files are pickles, which can run code when they are read. So they are read by torch's
weights-only reader, or one like it, which knows tensors and the few plain classes named here and
refuses everything else.
"""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Mapping
from enum import EnumMeta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..checkpoint.untrusted import path_inside
from ..errors import CheckpointError


class ExternalCheckpoint:
    """The weights in a folder.

    Attributes:
        shapes: shape and dtype of each tensor, known before any is read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shapes: dict[str, tuple[tuple[int, ...], torch.dtype]] = {}

    def read(self, name: str) -> Tensor:
        """Read one whole tensor."""
        raise NotImplementedError


def open_external(folder: Path) -> ExternalCheckpoint:
    """Open a folder, or a folder in it, with the reader of the program that wrote it.

    Raises:
        CheckpointError: no known program did, or the files hold more than weights.
    """
    inside = [path for path in folder.glob("*") if path.is_dir() and not path.is_symlink()]
    for place in (folder, *sorted(inside)):
        if (place / ".metadata").exists():
            if place.name.startswith("optimizer"):  # beside the model's, of the same kind
                continue
            return DistributedCheckpoint(place)
        if any(place.glob("*_optim_states.pt")):
            return DeepSpeedCheckpoint(place)

    raise CheckpointError(
        f"{folder}: holds no checkpoint of torch.distributed (.metadata) "
        "or of DeepSpeed (*_optim_states.pt)"
    )


class DistributedCheckpoint(ExternalCheckpoint):
    """A folder of ``torch.distributed.checkpoint``, as Accelerate writes it under FSDP.

    ``.metadata`` lists the tensors, and the pieces of each by file, place in the file, and offset
    in the tensor.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        metadata = _read_metadata(folder / ".metadata")
        self._pieces = metadata.storage_data
        self._stored_names: dict[str, str] = {}

        entries = metadata.state_dict_metadata
        all_below_model = all(name.startswith("model.") for name in entries)
        for stored_name, entry in entries.items():
            if not hasattr(entry, "chunks"):  # not a tensor
                continue
            name = stored_name.removeprefix("model.") if all_below_model else stored_name
            self._stored_names[name] = stored_name
            self.shapes[name] = (tuple(entry.size), entry.properties.dtype)

    def read(self, name: str) -> Tensor:
        shape, dtype = self.shapes[name]
        tensor = torch.empty(shape, dtype=dtype)
        filled = 0
        for index, place in self._pieces.items():
            if index.fqn != self._stored_names[name]:
                continue
            piece = self._read_piece(name, place)
            offsets = index.offset or (0,) * piece.dim()
            region = tuple(
                slice(offset, offset + length)
                for offset, length in zip(offsets, piece.shape, strict=True)
            )
            tensor[region] = piece
            filled += piece.numel()

        if filled != tensor.numel():
            raise CheckpointError(
                f"{self.folder}: {filled} of {tensor.numel()} elements of {name} are there"
            )
        return tensor

    def _read_piece(self, name: str, place: Any) -> Tensor:
        if place.transform_descriptors:  # such as compression
            raise CheckpointError(
                f"{self.folder}: {name} is stored transformed ({place.transform_descriptors})"
            )

        with open(path_inside(self.folder, place.relative_path), "rb") as file:
            file.seek(place.offset)
            content = io.BytesIO(file.read(place.length))
        piece: Tensor = torch.load(content, map_location="cpu", weights_only=True)
        return piece


# What torch.distributed.checkpoint writes into .metadata, by module: plain data, all of it.
_DTYPES = {name for name, value in vars(torch).items() if isinstance(value, torch.dtype)}
_METADATA_NAMES = {
    "torch.distributed.checkpoint.metadata": {
        "Metadata",
        "TensorStorageMetadata",
        "TensorProperties",
        "ChunkStorageMetadata",
        "BytesStorageMetadata",
        "MetadataIndex",
        "StorageMeta",
        "_MEM_FORMAT_ENCODING",
    },
    "torch.distributed.checkpoint.filesystem": {"_StorageInfo"},
    "torch.serialization": {"_get_layout"},
    "torch": {"Size", *_DTYPES},
    "pathlib": {"PosixPath", "PurePosixPath"},
    "collections": {"OrderedDict"},
}


def _enum_member(enumeration: Any, name: Any) -> Any:
    """Return a member of an enumeration, in the place of ``getattr``.

    Python 3.11.0 to 3.11.3 pickle such a member as a call of ``getattr``, which could get anything
    of any object.
    """
    if isinstance(enumeration, EnumMeta) and name in enumeration.__members__:
        return enumeration[name]
    raise pickle.UnpicklingError(f"it wants {name!r} of {enumeration!r}")


class _MetadataReader(pickle.Unpickler):
    """An unpickler that knows only the names in ``_METADATA_NAMES``.

    Torch's weights-only reader cannot read this file: it does not know its pickle protocol.
    """

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):
            return _enum_member
        if name not in _METADATA_NAMES.get(module, ()):
            raise pickle.UnpicklingError(f"it wants {module}.{name}")
        return super().find_class(module, name)


def _read_metadata(path: Path) -> Any:
    path_inside(path.parent, path.name)
    try:
        with open(path, "rb") as file:
            return _MetadataReader(file).load()
    except Exception as error:  # a forged file may raise anything in the reader
        raise CheckpointError(
            f"{path}: refused, for it is more than a list of tensors: {error}"
        ) from None


class DeepSpeedCheckpoint(ExternalCheckpoint):
    """A folder of DeepSpeed's stage 1, 2 or 3.

    The optimizer keeps the trainable weights in full precision, flattened and laid end to end in
    groups; each rank's file has its slices of them. Stages 1 and 2 slice each group, and its slices
    laid end to end are the group. Stage 3 slices each parameter, rounded up to equal slices, and
    each rank's slices of all parameters are laid end to end.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        models = [_load(path) for path in _by_rank(folder, "*_model_states.pt")]
        optimizers = [
            _load(path)["optimizer_state_dict"] for path in _by_rank(folder, "*_optim_states.pt")
        ]
        world_size = optimizers[0]["partition_count"]
        if isinstance(world_size, list):  # one for each group
            world_size = max(world_size)
        if len(optimizers) != world_size:
            raise CheckpointError(
                f"{folder}: {len(optimizers)} of {world_size} *_optim_states.pt are there"
            )

        self._models = models
        self._sliced_parameters = int(optimizers[0]["zero_stage"]) == 3
        key = "single_partition_of_fp32_groups"
        if self._sliced_parameters:
            key = "fp32_flat_groups"
        # By rank and group.
        self._slices: list[list[Tensor]] = []
        for optimizer in optimizers:
            self._slices.append([group.flatten() for group in optimizer[key]])

        # Group and offset in it of each trainable parameter.
        self._places: dict[str, tuple[int, int]] = {}
        paddings = optimizers[0].get("param_alignment_paddings")
        if self._sliced_parameters:
            self._place_slices(models[0]["param_shapes"], world_size)
        else:
            self._place_parameters(models[0]["param_shapes"], paddings)
        self._add_untrained(models[0])

    def _place_slices(self, groups: Any, world_size: int) -> None:
        """Find the slices of stage 3: one after the other, through all groups."""
        offset = 0
        for group, shapes in enumerate(groups):
            for name, shape in shapes.items():
                self._places[name] = (group, offset)
                self.shapes[name] = (tuple(shape), torch.float32)
                offset += _ceil_div(math.prod(shape), world_size)

    def _place_parameters(self, groups: Any, paddings: Any) -> None:
        """Find the parameters of stages 1 and 2: one after the other in each group.

        Args:
            groups: the shapes of each group by name.
            paddings: unused elements after each parameter of each group, if there are any.
        """
        for group, shapes in enumerate(groups):
            offset = 0
            for number, (name, shape) in enumerate(shapes.items()):
                self._places[name] = (group, offset)
                self.shapes[name] = (tuple(shape), torch.float32)
                offset += math.prod(shape)
                if paddings:
                    offset += paddings[group][number]

    def _add_untrained(self, model: Mapping[str, Any]) -> None:
        """Add frozen parameters and buffers, which the optimizer does not have."""
        self._frozen: Mapping[str, Any] = model.get("frozen_param_shapes") or {}
        for name, shape in self._frozen.items():
            self.shapes[name] = (tuple(shape), model["frozen_param_fragments"][name].dtype)
        for name in model["buffer_names"]:
            buffer = model["module"][name]
            self.shapes[name] = (tuple(buffer.shape), buffer.dtype)

    def read(self, name: str) -> Tensor:
        shape, _ = self.shapes[name]
        numel = math.prod(shape)
        if name in self._places:
            return self._read_trainable(name, numel).view(shape)
        if name in self._frozen:
            return self._read_frozen(name, numel).view(shape)

        buffer: Tensor = self._models[0]["module"][name]
        return buffer

    def _read_trainable(self, name: str, numel: int) -> Tensor:
        group, offset = self._places[name]
        if not self._sliced_parameters:
            return _cut([groups[group] for groups in self._slices], offset, numel)

        # A rank's groups follow each other; each slice has the same place in every rank's.
        length = _ceil_div(numel, len(self._slices))
        slices = [_cut(groups, offset, length) for groups in self._slices]
        return torch.cat(slices)[:numel]

    def _read_frozen(self, name: str, numel: int) -> Tensor:
        fragments = [model["frozen_param_fragments"][name].flatten() for model in self._models]
        if not self._sliced_parameters:  # each rank has the whole
            fragments = fragments[:1]
        return torch.cat(fragments)[:numel]


def _ceil_div(count: int, parts: int) -> int:
    return -(-count // parts)


def _cut(parts: list[Tensor], offset: int, numel: int) -> Tensor:
    """Return ``numel`` elements from ``offset`` on of flat tensors that are laid end to end."""
    pieces = []
    begin = 0
    for part in parts:
        end = begin + part.numel()
        if begin < offset + numel and offset < end:
            pieces.append(part[max(0, offset - begin) : offset + numel - begin])
        begin = end

    return torch.cat(pieces)


def _by_rank(folder: Path, pattern: str) -> list[Path]:
    """List files in the order of the ranks, which are the first number in their names."""

    def rank(path: Path) -> int:
        numbers = [int(word) for word in path.name.split("_") if word.isdigit()]
        return numbers[0] if numbers else 0

    return sorted(folder.glob(pattern), key=rank)


def _load(path: Path) -> Any:
    """Read a file of DeepSpeed by torch's weights-only reader."""
    from deepspeed.runtime.fp16.loss_scaler import DynamicLossScaler, LossScaler
    from deepspeed.runtime.zero.config import ZeroStageEnum
    from deepspeed.utils.tensor_fragment import fragment_address
    from torch.serialization import safe_globals

    path_inside(path.parent, path.name)
    plain_classes = [
        fragment_address,
        ZeroStageEnum,
        LossScaler,
        DynamicLossScaler,
        (_enum_member, "builtins.getattr"),
    ]
    try:
        with safe_globals(plain_classes):
            # mmap: the optimizer's state, which is not needed, stays out of memory.
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except Exception as error:  # a forged file may raise anything in the reader
        raise CheckpointError(f"{path}: refused, for it holds more than weights: {error}") from None
