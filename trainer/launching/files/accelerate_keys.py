"""The keys of an accelerate file, held against the table.

Accelerate refuses unknown keys at the top level only: nested ones become launcher arguments that nobody reads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config.documents import Document
from ...config.validate import Validator
from ...errors import Sourced
from .tables import accelerate_keys, annotation, deepspeed_keys, table

Entries = Mapping[str, Sourced[Any]]  # by key of the top level or, in sections, by argument of the launcher
OWNER = "accelerate's config file"
# Accelerate adds the prefix itself in these sections (commands/launch.py), so both spellings are known.
_PREFIXES = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}


def section_names() -> list[str]:
    return list(table("accelerate")["sections"])


def spellings(section: str) -> set[str]:
    """Return all names that a section of the file may hold."""
    arguments = accelerate_keys(section).keys()
    return {*arguments, *(name.removeprefix(_PREFIXES.get(section, "")) for name in arguments)}


def checked(section: str, entries: Entries, check: Validator) -> dict[str, Sourced[Any]]:
    """Return the entries as they are meant, without those that are of the wrong type."""
    known = accelerate_keys(section)
    found = {}
    for name, entry in entries.items():
        if entry.value == "auto" and section == "deepspeed_config":
            continue  # as in DeepSpeed's JSON: the training config says it
        value = check.read(annotation(known[name], any_case=True), entry)
        if value is not None:
            found[name] = entry.meaning(value)
    return found


def read_top_level(doc: Document, check: Validator) -> dict[str, Sourced[Any]]:
    """Return the values at the top level that are of the right type; null counts as absent."""
    known, sections, typed = accelerate_keys(), section_names(), {}
    for key in doc.data:
        found = doc.at(key)
        assert found is not None
        if key in known and found.value is not None:
            typed[key] = found
        elif key.startswith("_"):
            check.refuse(found, "accelerate refuses keys that it does not know; write a # comment instead")
        elif key not in known and key not in sections:
            owners = [name for name in sections if key in accelerate_keys(name)]
            check.unknown(found, [*known, *sections], (key,), f"it belongs under {owners[0]}" if owners else "")
    return checked("top_level", typed, check)


def read_sections(doc: Document | None, flags: Entries, check: Validator) -> dict[str, dict[str, Sourced[Any]]]:
    """Return the entries of all sections; a flag wins over its file."""
    found = {}
    for name in section_names():
        typed = {flag: given for flag, given in flags.items() if flag in accelerate_keys(name)}
        found[name] = (_section(doc, name, check) if doc else {}) | typed
    return found


def _section(doc: Document, name: str, check: Validator) -> dict[str, Sourced[Any]]:
    section, known = doc.at(name), accelerate_keys(name)
    if section is None or section.value is None:
        return {}
    if not isinstance(section.value, dict):
        check.refuse(section, "must be a mapping")
        return {}
    entries: dict[str, Sourced[Any]] = {}
    for raw, value in section.value.items():
        key = str(raw)
        found = Sourced(value, doc.origin((name, key)))
        if key.startswith("_"):
            continue  # a comment
        argument = key if key in known else _PREFIXES.get(name, "") + key
        if argument not in known:
            check.unknown(found, spellings(name), (name, key), _belongs(key, name))
        elif argument in entries:
            first = entries[argument].origin
            check.refuse(found, f"stands twice, also as {first.key} at {first.place}; keep one")
        elif found.value is not None:
            entries[argument] = found
    return entries


def _belongs(key: str, section: str) -> str:
    """Return where an unknown key of a section belongs; "" where it looks like a misspelling."""
    if (full := f"{section}_{key}") in accelerate_keys(section):
        return f"did you mean {full!r}?"
    if key in accelerate_keys():
        return "it belongs at the top level"
    if others := [other for other in section_names() if key in accelerate_keys(other)]:
        return f"it belongs under {others[0]}"
    path = _path_in_json(key) if section == "deepspeed_config" else None
    return f"it is {'.'.join(path)} of DeepSpeed's JSON: name one with deepspeed_config_file" if path else ""


def _path_in_json(name: str) -> tuple[str, ...] | None:
    """Return the key of DeepSpeed's JSON that ``name`` means where it is written flat, such as ``bf16_enabled``."""
    zero = "zero_optimization"
    for section in ((), (zero,), (zero, "offload_optimizer"), (zero, "offload_param"), ("fp16",), ("bf16",)):
        for key in deepspeed_keys(section) or ():
            path = (*section, key)
            if name in ("_".join(path), "_".join(path[section[:1] == (zero,) :])):
                return path
    return None
