"""A checkpoint, opened: state.json, the model's tensors and all other tensors.

``docs/checkpoint_format.md`` explains the values. Forms are checked. Further keys may be there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor
from typing_extensions import NotRequired, TypedDict

from ..errors import CheckpointError
from .disk import path_inside, read_json
from .exported import MODEL_FILE, ModelFile
from .ranges import Ranges, of_rank_files
from .safetensors_io import CODES, Entry, dtype_name
from .store import STATE

WEIGHTS = ("parameter", "frozen", "buffer")  # the kinds as which a tensor of the model is stored
_DTYPES = {dtype_name(dtype): dtype for dtype in CODES}
_Dtype = Annotated[str, Field(pattern=f"^({'|'.join(_DTYPES)})$")]

_Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class _File(TypedDict):
    bytes: _Count
    xxh3: str


class _Manifest(TypedDict):
    step: _Count
    samples: _Count
    world_size: _Count
    strategy: str
    created: str
    files: dict[str, _File]


class _Data(TypedDict):
    samples: _Count
    epoch: NotRequired[_Count]
    offset: NotRequired[_Count]
    began: NotRequired[int]


class _Schedule(TypedDict):
    kind: str
    steps: _Count
    lr: list[float]
    own: dict[str, Any]


class _Group(TypedDict):
    names: list[str]
    settings: dict[str, Any]


class _Mathematics(TypedDict):
    optimizer: str
    optimizer_groups: list[_Group]


class _Export(TypedDict):
    file: Annotated[str, Field(pattern=r"^[^/\\]+$")]  # in the folder of an export
    names: dict[str, str]


class _Spent(TypedDict):
    tokens: float
    seconds: float


class _State(TypedDict):
    step: _Count
    samples: _Count
    data: _Data
    schedule: _Schedule
    skipped_steps: _Count
    skipped_in_a_row: _Count
    scaler: dict[str, float]
    model: list[tuple[str, list[_Count], _Dtype]]
    group_settings: list[dict[str, Any]]
    task: Any
    callbacks: dict[str, Any]
    mathematics: _Mathematics
    last_evaluation: dict[str, float | dict[str, str]]
    config: NotRequired[dict[str, Any]]
    content: dict[str, Any]
    spent: _Spent
    export: NotRequired[_Export]


MANIFEST_FORM = TypeAdapter(_Manifest)
STATE_FORM = TypeAdapter(_State)


def check_form(file: Path, form: TypeAdapter[Any]) -> None:
    """Raise ``CheckpointError`` with file and key if a JSON file has another form."""
    try:
        form.validate_json(file.read_bytes(), strict=True)  # no text is a number
    except ValidationError as error:
        found = error.errors()[0]
        key = ".".join(map(str, found["loc"]))
        raise CheckpointError(
            f"{file.name}: {key}: '{found['input']!s:.60}': {found['msg']}"
        ) from None


def decode(value: Any, tensor_of: Callable[[str], Tensor]) -> Any:
    """Return a value that ``snapshot.encode`` encoded. ``tensor_of`` reads a tensor by name."""

    def decoded(item: dict[str, Any]) -> Any:
        if "$number" in item:
            return float(item["$number"])
        if "$tuple" in item:
            return tuple(item["$tuple"])
        if "$tensor" in item:
            name, shape = item["$tensor"]
            return tensor_of(name).reshape(shape)
        return item

    return json.loads(json.dumps(value), object_hook=decoded)


class Contents(NamedTuple):
    """A checkpoint, opened.

    Args:
        state: the values of state.json, in the form of ``STATE_FORM``.
        model: dtype and shape of each tensor of the model, in the order of an exported file.
    """

    state: Mapping[str, Any]
    model: Mapping[str, Entry]
    ranges: Ranges

    @classmethod
    def of(cls, folder: Path, names: Iterable[str]) -> Contents:
        """Open a checkpoint that consists of the files ``names``. Reads only headers of tensors.

        Raises:
            CheckpointError: a value has another form, or the files lack an element of the model.
        """
        file = path_inside(folder, STATE)
        state = read_json(file)
        check_form(file, STATE_FORM)
        model = {name: Entry(_DTYPES[dtype], tuple(shape)) for name, shape, dtype in state["model"]}
        paths = [path_inside(folder, name) for name in names if name.startswith("rank-")]
        contents = cls(state=state, model=model, ranges=of_rank_files(paths))
        for name, entry in model.items():
            contents.ranges.check_whole(contents.kind(name) or WEIGHTS[0], name, entry.numel)
            if contents.ranges.holds("average", name):
                contents.ranges.check_whole("average", name, entry.numel)
        return contents

    def kind(self, name: str) -> str | None:
        """Return the kind as which a tensor is stored. None for a tensor without elements."""
        return next((kind for kind in WEIGHTS if self.ranges.holds(kind, name)), None)

    @property
    def model_file(self) -> ModelFile:
        """Return the form of the exported file: of the saved part, or of the whole model."""
        export = self.state.get("export", {})
        return ModelFile(file=export.get("file", MODEL_FILE), names=export.get("names"))
