"""The entries of an accelerate file, under keys that the installed Accelerate knows.

Accelerate refuses unknown keys at the top level only. A key of a section is an argument of
``accelerate launch``, so the parser of that command knows these keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...config.documents import Document
from ...errors import Sourced
from ...private.accelerate import launch_arguments
from ..findings import Findings, M, keys_at

# The values of a file and its flags, by key of the top level or by argument of the launcher.
Entries = Mapping[str, Sourced[Any]]

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


def read_entries(doc: Document | None, flags: Entries, check: Findings) -> Entries:
    """Return the entries of all sections together. A flag wins over the file. Null is absent."""
    from accelerate.commands.config.config_args import ClusterConfig

    if doc is None:
        return flags
    entries: dict[str, Sourced[Any]] = {}
    fields = {field.name for field in dataclasses.fields(ClusterConfig)}
    # Accelerate converts the last two keys, which have no field.
    top_level = {*fields, "fp16", "dynamo_backend"}.difference(_SECTIONS)
    _read_section(doc, "", top_level, "", entries, check)

    # The last key has no argument: the launcher reads the key by name.
    arguments = {*launch_arguments(), "fsdp_ignored_modules"}
    for section, beginnings in _SECTIONS.items():
        known = {name for name in arguments if name.startswith(beginnings)}
        prefix = beginnings[0] if section in _WITHOUT_PREFIX else ""
        _read_section(doc, f"{section}.", known, prefix, entries, check)
    return {**entries, **flags}


def read_values(model: type[M], entries: Entries, check: Findings) -> M:
    """Return the entries that a model has, and the model's defaults if the entries do not fit."""
    keys = keys_at(model, ())
    values = {name: entry.value for name, entry in entries.items() if name in keys}
    read = check.read(model, values, lambda key: entries[key.partition(".")[0]].origin)
    return read or model()


def _read_section(
    doc: Document,
    above: str,
    known: set[str],
    prefix: str,
    entries: dict[str, Sourced[Any]],
    check: Findings,
) -> None:
    """Put the values of a section into ``entries``, and record its unknown keys."""
    section = doc.at(above.rstrip(".")) if above else Sourced(doc.data, doc.origin(""))
    if section is None or not section.value:
        return
    if not isinstance(section.value, dict):
        check.refuse(section, "must be a mapping")
        return

    for key, value in section.value.items():
        found = Sourced(value, doc.origin(f"{above}{key}"))
        argument = key if key in known else prefix + key
        is_comment = bool(above) and key.startswith("_")
        if is_comment or (not above and key in _SECTIONS) or value is None:
            continue
        if argument not in known:
            check.unknown(found, known)
        elif argument in entries:
            check.refuse(found, f"is given twice, also at {entries[argument].origin}; keep one")
        else:
            entries[argument] = found
