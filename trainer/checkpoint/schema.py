"""The form of manifest.json and state.json, checked in one pass when a checkpoint is opened.

A schema is a Python type, or

    [item]           a list in which every item has the form ``item``
    (a, b, c)        a list of exactly these forms
    {str: value}     a mapping in which every value has the form ``value``
    {"key": form}    a mapping with at least these keys; one that ends in ``?`` may be absent

``docs/checkpoint_format.md`` explains what the values mean.
"""

from __future__ import annotations

from typing import Any

from ..errors import CheckpointError

MANIFEST_SCHEMA: dict[Any, Any] = {
    "step": int,
    "samples": int,
    "world_size": int,
    "strategy": str,
    "created": str,
    "files": {str: {"bytes": int, "xxh3": str}},
}

STATE_SCHEMA: dict[Any, Any] = {
    "step": int,
    "samples": int,
    "data": {"samples": int},
    "schedule": {"kind": str, "steps": int, "lr": [float], "own": dict},
    "skipped_steps": int,
    "skipped_in_a_row": int,
    "scaler": {str: float},
    "model": [(str, [int], str)],
    "group_settings": [dict],
    "task": object,
    "callbacks": dict,
    "mathematics": {
        "optimizer": str,
        "optimizer_groups": [{"names": [str], "settings": dict}],
    },
    "last_evaluation": dict,
    # Checkpoints did not keep these from the beginning.
    "config?": dict,
    "not_finite_at_start?": [str],
    "content?": {str: dict},
    "evaluation_owed?": bool,
    "unfrozen?": [{"layers": [str], "step": int, "lr": object}],
    "spent?": {"tokens": float, "seconds": float},
    "export?": {"file": str, "names": {str: str}},
}

_CALLED = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    dict: "a mapping",
    list: "a list",
}


def check_schema(value: Any, schema: Any, place: str) -> None:
    """Check that a value read from JSON has the form that a schema describes.

    Args:
        place: where the value is, for the message: ``state.json`` or ``state.json: schedule``.

    Raises:
        CheckpointError: it has another form; the message names the place.
    """
    if isinstance(schema, type):
        _check_type(value, schema, place)

    elif isinstance(schema, list | tuple):
        _check_type(value, list, place)
        forms = schema * len(value) if isinstance(schema, list) else schema
        if len(value) != len(forms):
            raise CheckpointError(f"{place} has {len(value)} items instead of {len(forms)}")
        for number, item in enumerate(value):
            check_schema(item, forms[number], f"{place}.{number}")

    elif str in schema:
        _check_type(value, dict, place)
        for key, item in value.items():
            check_schema(item, schema[str], f"{place}: {key}")

    else:
        _check_type(value, dict, place)
        _check_keys(value, schema, place)


def _check_keys(value: dict[str, Any], schema: dict[str, Any], place: str) -> None:
    for key, form in schema.items():
        name = key.removesuffix("?")
        if name in value:
            check_schema(value[name], form, f"{place}: {name}")
        elif name == key:
            raise CheckpointError(f"{place}: {name} is missing")


def _check_type(value: Any, wanted: type, place: str) -> None:
    if wanted is object:
        return
    accepted = (int, float) if wanted is float else (wanted,)
    is_wanted = isinstance(value, accepted)
    if isinstance(value, bool) and wanted is not bool:  # in Python a bool is an int
        is_wanted = False
    if not is_wanted:
        raise CheckpointError(f"{place} must be {_CALLED[wanted]}, and is {str(value)[:60]!r}")
