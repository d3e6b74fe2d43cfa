"""The form of manifest.json and state.json."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from one_process import checkpoint, fit

from trainer import CheckpointError
from trainer.checkpoint.schema import MANIFEST_SCHEMA, STATE_SCHEMA, check_schema

SCHEMA: dict[Any, Any] = {
    "count": int,
    "rates": [float],
    "entry": (str, [int]),
    "sizes": {str: {"bytes": int}},
    "later?": bool,
    "anything": object,
}
FITS: dict[str, Any] = {
    "count": 3,
    "rates": [1, 2.5],
    "entry": ["w", [2, 3]],
    "sizes": {"a": {"bytes": 1, "other": None}},
    "anything": None,
}


def test_a_value_of_the_form_is_accepted() -> None:
    check_schema(FITS, SCHEMA, "file")
    check_schema({**FITS, "later": True, "unknown": []}, SCHEMA, "file")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"count": "3"}, "file: count must be a whole number, and is '3'"),
        ({"count": True}, "file: count must be a whole number, and is 'True'"),
        ({"count": 3.0}, "file: count must be a whole number, and is '3.0'"),
        ({"rates": {}}, "file: rates must be a list, and is '{}'"),
        ({"rates": [1, "x"]}, "file: rates.1 must be a number, and is 'x'"),
        ({"entry": ["w"]}, "file: entry has 1 items instead of 2"),
        ({"entry": ["w", [None]]}, "file: entry.1.0 must be a whole number, and is 'None'"),
        ({"sizes": {"a": {}}}, "file: sizes: a: bytes is missing"),
        ({"later": None}, "file: later must be true or false, and is 'None'"),
    ],
)
def test_a_value_of_another_form_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        check_schema({**FITS, **change}, SCHEMA, "file")
    assert str(caught.value) == message


@pytest.mark.usefixtures("fresh_accelerate")
def test_each_key_of_a_written_checkpoint_is_checked(tmp_path: Path) -> None:
    fit(tmp_path / "run", max_steps=2)
    path = checkpoint(tmp_path / "run", 2)
    for name, schema in (("manifest.json", MANIFEST_SCHEMA), ("state.json", STATE_SCHEMA)):
        written = json.loads((path / name).read_text())
        check_schema(written, schema, name)
        for key in schema:
            without = {other: value for other, value in written.items() if other != key}
            if key.endswith("?"):
                check_schema(without, schema, name)
            else:
                with pytest.raises(CheckpointError, match=f"{name}: {key} is missing"):
                    check_schema(without, schema, name)
