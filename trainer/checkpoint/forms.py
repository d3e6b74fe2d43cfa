"""The form of manifest.json and state.json, which is checked when a checkpoint is opened.

``docs/checkpoint_format.md`` explains the values. Further keys may be there.
"""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError
from typing_extensions import NotRequired, TypedDict

from ..errors import CheckpointError


class _File(TypedDict):
    bytes: int
    xxh3: str


class _Manifest(TypedDict):
    step: int
    samples: int
    world_size: int
    strategy: str
    created: str
    files: dict[str, _File]


class _Data(TypedDict):
    samples: int


class _Schedule(TypedDict):
    kind: str
    steps: int
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


class _State(TypedDict):
    step: int
    samples: int
    data: _Data
    schedule: _Schedule
    skipped_steps: int
    skipped_in_a_row: int
    scaler: dict[str, float]
    model: list[tuple[str, list[int], str]]
    group_settings: list[dict[str, Any]]
    task: Any
    callbacks: dict[str, Any]
    mathematics: _Mathematics
    last_evaluation: dict[str, Any]
    config: NotRequired[dict[str, Any]]
    content: NotRequired[dict[str, Any]]
    spent: NotRequired[dict[str, float]]
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
        value = str(found["input"])[:60]
        raise CheckpointError(f"{file}: {key}: {value!r}: {found['msg']}") from None
