"""The keys of an accelerate file: each held against the table, with the place where a stray one
belongs.

Accelerate refuses unknown keys at the top level only: nested ones become launcher arguments that
nobody reads.
"""

from __future__ import annotations

from typing import Any

from ...config.documents import Document
from ...config.validate import Validator
from ...errors import Sourced
from .tables import TOP_LEVEL, Entries, accelerate_keys, checked, deepspeed_keys, table

OWNER = "accelerate's config file"
# Accelerate adds the prefix itself in these sections (commands/launch.py), so both spellings are
# known.
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


def spellings(section: str) -> set[str]:
    """Return all names that a section of the file may hold."""
    arguments = accelerate_keys(section).keys()
    return {*arguments, *(name.removeprefix(_PREFIXES.get(section, "")) for name in arguments)}


def read_entries(
    doc: Document | None, flags: Entries, check: Validator
) -> dict[str, dict[str, Sourced[Any]]]:
    """Return what the top level and each section hold, by argument of the launcher; a flag wins
    over its file.

    Null counts as absent; values at the top level that are of the wrong type are left out.
    """
    found = {}
    for section in (TOP_LEVEL, *table("accelerate")["sections"]):
        typed = {flag: entry for flag, entry in flags.items() if flag in accelerate_keys(section)}
        found[section] = (_section(doc, section, check) if doc else {}) | typed
    return found | {TOP_LEVEL: checked(TOP_LEVEL, found[TOP_LEVEL], check)}


def _section(doc: Document, name: str, check: Validator) -> dict[str, Sourced[Any]]:
    above = () if name == TOP_LEVEL else (name,)
    section, known, others = (
        doc.at(*above),
        accelerate_keys(name),
        () if above else table("accelerate")["sections"],
    )
    if section is None or section.value is None:
        return {}
    if not isinstance(section.value, dict):
        check.refuse(section, "must be a mapping")
        return {}
    entries: dict[str, Sourced[Any]] = {}
    for key, value in section.value.items():
        key = str(key)
        found = Sourced(value, doc.origin((*above, key)))
        argument = key if key in known else _PREFIXES.get(name, "") + key
        if key in others or (above and key.startswith("_")):
            continue  # a section, a comment
        if argument not in known:
            check.unknown(
                found, {*spellings(name), *others}, (*above, key), _belongs(key, name), owner=OWNER
            )
        elif argument in entries:
            first = entries[argument].origin
            check.refuse(found, f"stands twice, also as {first.key} at {first.place}; keep one")
        elif found.value is not None:
            entries[argument] = found
    return entries


def _belongs(key: str, section: str) -> str:
    """Return where an unknown key of a section belongs; "" where it looks like a misspelling."""
    if key.startswith("_"):
        return "accelerate refuses it; write a # comment instead"
    if (full := f"{section}_{key}") in accelerate_keys(section):
        return f"did you mean {full!r}?"
    if owners := [
        owner
        for owner in (TOP_LEVEL, *table("accelerate")["sections"])
        if key in accelerate_keys(owner)
    ]:
        return (
            "it belongs at the top level"
            if owners[0] == TOP_LEVEL
            else f"it belongs under {owners[0]}"
        )
    for above in _WRITTEN_FLAT if section == "deepspeed_config" else ():
        for name in deepspeed_keys(above) or ():
            flat = "_".join((*above, name))
            if key in (flat, flat.removeprefix(f"{_ZERO}_")):
                return f"it is {'.'.join((*above, name))} of DeepSpeed's JSON: name one with deepspeed_config_file"
    return ""
