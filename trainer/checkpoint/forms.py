"""The form of manifest.json and state.json, which is checked when a checkpoint is opened.

``docs/checkpoint_format.md`` explains the values. Further keys may be there.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from ..errors import CheckpointError

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
    file: str
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
    model: list[tuple[str, list[_Count], str]]
    group_settings: list[dict[str, Any]]
    task: Any
    callbacks: dict[str, Any]
    mathematics: _Mathematics
    last_evaluation: dict[str, float | dict[str, str]]
    config: NotRequired[dict[str, Any]]
    content: NotRequired[dict[str, Any]]
    spent: NotRequired[_Spent]
    export: NotRequired[_Export]


MANIFEST_FORM = TypeAdapter(_Manifest)
STATE_FORM = TypeAdapter(_State)


def check_form(text: bytes, form: TypeAdapter[Any], file: str) -> None:
    """Check that the text of a JSON file has a form.

    Raises:
        CheckpointError: the text has another form. The message names the file and the key.
    """
    try:
        form.validate_json(text, strict=True)  # no text is a number
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)[0]
        key = ".".join(str(part) for part in found["loc"])
        raise CheckpointError(
            f"{file}: {key}: {str(found['input'])[:60]!r}: {found['msg']}"
        ) from None
