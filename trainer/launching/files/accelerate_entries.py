"""The entries of an accelerate file: known keys only, each of the right type.

Accelerate refuses unknown keys at the top level only: a nested one becomes a launcher argument that
nobody reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config.documents import Document
from ...config.validate import Validator
from ...errors import Sourced
from . import deepspeed_schema
from .accelerate_schema import TOP_LEVEL, key_types, sections

# What a section holds, by argument of the launcher; at the top level by key.
Entries = Mapping[str, Sourced[Any]]

OWNER = "accelerate's config file"

# Accelerate adds the prefix itself in these sections (commands/launch.py): both spellings are read.
_PREFIXES = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}

_ZERO = "zero_optimization"
# Sections of DeepSpeed's JSON whose keys people write flat, such as bf16_enabled.
_WRITTEN_FLAT = (
    (),
    (_ZERO,),
    (_ZERO, "offload_optimizer"),
    (_ZERO, "offload_param"),
    ("fp16",),
    ("bf16",),
)


def read_entries(doc: Document | None, flags: Entries, check: Validator) -> dict[str, Entries]:
    """Return the entries of the top level and of each section. A flag wins over the file.

    Null counts as absent. Of the top level, values of the wrong type are left out.
    """
    entries: dict[str, Entries] = {}
    for section in (TOP_LEVEL, *sections()):
        known = key_types(section)
        in_file = {} if doc is None else _read_section(doc, section, check)
        typed = {name: entry for name, entry in flags.items() if name in known}
        entries[section] = {**in_file, **typed}

    entries[TOP_LEVEL] = of_right_type(TOP_LEVEL, entries[TOP_LEVEL], check)
    return entries


def of_right_type(section: str, entries: Entries, check: Validator) -> dict[str, Sourced[Any]]:
    """Return the entries with their values as they are understood; refuse those of a wrong type."""
    known = key_types(section)
    found = {}
    for name, entry in entries.items():
        if entry.value == "auto" and section == "deepspeed_config":
            continue  # as in DeepSpeed's JSON: the training config decides
        value = check.read(known[name], entry)
        if value is not None:
            found[name] = entry.meaning(value)
    return found


def spellings(section: str) -> set[str]:
    """Return all names that a section of the file may hold."""
    names = set(key_types(section))
    prefix = _PREFIXES.get(section, "")
    return names | {name.removeprefix(prefix) for name in names}


def _read_section(doc: Document, name: str, check: Validator) -> dict[str, Sourced[Any]]:
    if name == TOP_LEVEL:
        path: tuple[str, ...] = ()
        nested = sections()
    else:
        path = (name,)
        nested = ()

    section = doc.at(*path)
    if section is None or section.value is None:
        return {}
    if not isinstance(section.value, dict):
        check.refuse(section, "must be a mapping")
        return {}

    known = key_types(name)
    entries: dict[str, Sourced[Any]] = {}
    for key, value in section.value.items():
        key = str(key)
        is_comment = bool(path) and key.startswith("_")
        if key in nested or is_comment:
            continue

        found = Sourced(value, doc.origin((*path, key)))
        argument = key if key in known else _PREFIXES.get(name, "") + key
        if argument not in known:
            names = {*spellings(name), *nested}
            check.unknown(found, names, (*path, key), _belongs(key, name), owner=OWNER)
        elif argument in entries:
            first = entries[argument].origin
            check.refuse(found, f"is given twice, also as {first.key} at {first.place}; keep one")
        elif value is not None:
            entries[argument] = found
    return entries


def _belongs(key: str, section: str) -> str:
    """Return where an unknown key of a section belongs; "" where it looks like a misspelling."""
    if key.startswith("_"):
        return "accelerate refuses it; write a # comment instead"

    full_name = f"{section}_{key}"
    if full_name in key_types(section):
        return f"did you mean {full_name!r}?"

    if key in key_types(TOP_LEVEL):
        return "it belongs at the top level"
    for owner in sections():
        if key in key_types(owner):
            return f"it belongs under {owner}"

    if section == "deepspeed_config":
        return _belongs_in_json(key)
    return ""


def _belongs_in_json(key: str) -> str:
    """Return the key of DeepSpeed's JSON that a flat name stands for; "" where there is none."""
    for path in _WRITTEN_FLAT:
        for name in deepspeed_schema.keys_at(path):
            flat = "_".join((*path, name))
            if key in (flat, flat.removeprefix(f"{_ZERO}_")):
                dotted = ".".join((*path, name))
                return f"it is {dotted} of DeepSpeed's JSON: name one with deepspeed_config_file"
    return ""
