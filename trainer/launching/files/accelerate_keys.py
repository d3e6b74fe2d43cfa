"""The entries of an accelerate file, under keys that the installed Accelerate knows.

Accelerate refuses unknown keys at the top level only. A key of a section is an argument of
``accelerate launch``, so the parser of that command knows these keys.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

from ...config.documents import Document
from ...errors import Sourced
from ...private.python import arguments_of
from ..findings import Findings, M, keys_at

# The values of a section, by argument of the launcher.
Entries = Mapping[str, Sourced[Any]]

TOP_LEVEL = "top_level"

# How the arguments begin that belong to a section.
_SECTIONS: dict[str, tuple[str, ...]] = {
    "fsdp_config": ("fsdp_",),
    "deepspeed_config": ("deepspeed_", "zero", "offload_", "gradient_"),
    "parallelism_config": ("parallelism_config_",),
    "dynamo_config": ("dynamo_",),
    "fp8_config": ("fp8_",),
    "megatron_lm_config": ("megatron_lm_",),
    "mpirun_config": ("mpirun_",),
}
# Accelerate adds the prefix itself in these sections (commands/launch.py): both spellings are read.
_WITHOUT_PREFIX = ("fsdp_config", "fp8_config", "dynamo_config")


def read_entries(doc: Document | None, flags: Entries, check: Findings) -> dict[str, Entries]:
    """Return the entries of the top level and of each section. A flag wins over the file.

    Null counts as absent.
    """
    entries: dict[str, Entries] = {}
    for section in (TOP_LEVEL, *_SECTIONS):
        known = _known_keys(section)
        in_file = {} if doc is None else _read_section(doc, section, known, check)
        typed = {name: entry for name, entry in flags.items() if name in known}
        entries[section] = {**in_file, **typed}
    return entries


def read_values(model: type[M], entries: Entries, check: Findings) -> M:
    """Return the entries that a model has, and the model's defaults if the entries do not fit."""
    keys = keys_at(model, ())
    values = {name: entry.value for name, entry in entries.items() if name in keys}
    read = check.read(model, values, lambda path: entries[path[0]].origin)
    return read or model()


@functools.cache
def _known_keys(section: str) -> frozenset[str]:
    """Return the keys of the top level or, in a section, the arguments that belong to it."""
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.commands.launch import launch_command_parser

    if section == TOP_LEVEL:
        fields = {field.name for field in dataclasses.fields(ClusterConfig)}
        # The last two have no field: Accelerate converts them.
        return frozenset({*fields, "fp16", "dynamo_backend"}.difference(_SECTIONS))
    arguments = {action.dest for action in arguments_of(launch_command_parser())}
    # This key has no argument: the launcher reads the key by name.
    arguments.add("fsdp_ignored_modules")
    return frozenset(name for name in arguments if name.startswith(_SECTIONS[section]))


def _read_section(
    doc: Document, section: str, known: frozenset[str], check: Findings
) -> dict[str, Sourced[Any]]:
    path = () if section == TOP_LEVEL else (section,)
    prefix = _SECTIONS[section][0] if section in _WITHOUT_PREFIX else ""
    values = doc.data if not path else doc.data.get(section) or {}
    if not isinstance(values, dict):
        check.refuse(Sourced(values, doc.origin(path)), "must be a mapping")
        return {}

    entries: dict[str, Sourced[Any]] = {}
    for key, value in values.items():
        is_comment = bool(path) and key.startswith("_")
        if is_comment or (not path and key in _SECTIONS):
            continue
        found = Sourced(value, doc.origin((*path, key)))
        argument = key if key in known else prefix + key
        if argument not in known:
            check.unknown(found, known)
        elif argument in entries:
            check.refuse(found, f"is given twice, also at {entries[argument].origin}; keep one")
        elif value is not None:
            entries[argument] = found
    return entries
