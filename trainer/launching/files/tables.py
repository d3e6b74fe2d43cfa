"""The keys that Accelerate and DeepSpeed know, read from the tables beside this module.

Neither package lists its keys, nor refuses a nested one that it does not know.
``tests/support/known_keys.py`` asks the installed packages; what they say is committed, so that a
file is checked without either of them.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from ...config.annotations import About
from ...config.documents import read_table
from ...config.validate import Validator
from ...errors import Sourced

TOP_LEVEL = "top_level"
Entries = Mapping[
    str, Sourced[Any]
]  # by key of the top level or, in sections, by argument of the launcher
_TYPES = {
    "bool": bool,
    "flag": bool,
    "int": int,
    "whole": float,
    "number": float,
    "text": str,
    "any": Any,
}
_LIMITS = {">=": "minimum", ">": "above", "<=": "maximum", "<": "below"}


def table(name: str) -> dict[str, Any]:
    """Read a table: ``accelerate`` or ``deepspeed``."""
    return read_table(Path(__file__).with_name(f"{name}.yaml"))


def annotation(spec: str | list[str], *, any_case: bool = False) -> Any:
    """Return what the validator takes for the type of a key, such as ``number >= 0 <= 1`` or a list
    of choices.

    A ``flag`` is true or false, in quotes as well; ``whole`` is a whole number that may be written
    as 2e8.

    Args:
        any_case: whether choices are taken in any case.
    """
    if isinstance(spec, list):
        return Annotated[Literal[tuple(spec)], About(any_case=any_case)]
    name, *limits = spec.split()
    bounds: dict[str, Any] = {
        _LIMITS[sign]: int(limit) for sign, limit in zip(limits[::2], limits[1::2], strict=True)
    }
    return Annotated[_TYPES[name], About(whole=name == "whole", any_case=name == "flag", **bounds)]


@functools.cache
def accelerate_keys(section: str = TOP_LEVEL) -> dict[str, Any]:
    """Return the type of each key at the top level, or of each launcher argument that a section may
    hold.
    """
    known = table("accelerate")
    declared = known[TOP_LEVEL] if section == TOP_LEVEL else known["sections"][section]
    return {**declared, **known["own"].get(section, {})}


def deepspeed_keys(path: tuple[str, ...] = ()) -> dict[str, Any] | None:
    """Return what DeepSpeed knows at ``path``: types, and mappings for sections; None where it
    takes anything.
    """
    known: Any = table("deepspeed")["keys"]
    for name in path:
        known = known.get(name) if isinstance(known, dict) else None
    if not isinstance(known, dict):
        return None
    own = table("deepspeed")["own"]
    return {name: own.get(".".join((*path, name)), spec) for name, spec in known.items()}


def checked(section: str, entries: Entries, check: Validator) -> dict[str, Sourced[Any]]:
    """Return the entries as they are meant, without those of the wrong type; note those that change
    nothing.
    """
    known, idle = accelerate_keys(section), table("accelerate")["idle"]
    found = {}
    for name, entry in entries.items():
        if entry.value == "auto" and section == "deepspeed_config":
            continue  # as in DeepSpeed's JSON: the training config says it
        value = check.read(annotation(known[name], any_case=True), entry)
        if value is not None:
            found[name] = entry.meaning(value)
        if value is not None and value == idle.get(name, (None,))[0]:
            check.notice(entry, idle[name][1])
    return found
