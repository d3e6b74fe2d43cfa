"""The entries of an accelerate file, under keys that the installed Accelerate knows.

A key of a section is an argument of ``accelerate launch``, so that command's parser knows the keys.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...config.documents import Document
from ...errors import Sourced
from ...private.accelerate import launch_arguments
from ...text import did_you_mean
from ..findings import Findings, M, keys_of

# The values of a file and its flags, by key of the top level or by argument of the launcher.
Entries = Mapping[str, Sourced[Any]]

# Each may have any argument of the launcher.
_SECTIONS = (
    "fsdp_config", "deepspeed_config", "parallelism_config", "dynamo_config", "fp8_config",
    "megatron_lm_config", "mpirun_config",
)  # fmt: skip
# Accelerate adds the prefix itself in these sections (commands/launch.py): both spellings are read.
_PREFIXES = {"fsdp_config": "fsdp_", "fp8_config": "fp8_", "dynamo_config": "dynamo_"}


def read_entries(doc: Document | None, flags: Entries, check: Findings) -> Entries:
    """Return the entries of all sections together. A flag wins over the file."""
    from accelerate.commands.config.config_args import ClusterConfig

    if doc is None:
        return flags
    # Accelerate reads these two keys by name. They have no field and no argument.
    top_level = {*(field.name for field in dataclasses.fields(ClusterConfig)), "dynamo_backend"}
    arguments = {*launch_arguments(), "fsdp_ignored_modules"}

    entries: dict[str, Sourced[Any]] = {}
    for name, part in doc.data.items():
        values, known, above = {name: part}, top_level, ""
        if name in _SECTIONS:
            values, known, above = part or {}, arguments, f"{name}."
        if not isinstance(values, dict):
            check.fail(Sourced(values, doc.origin(name)), "must be a mapping")

        for key, value in values.items():
            if value is None or key.startswith("_"):  # absent, or a comment
                continue
            found = Sourced(value, doc.origin(above + key))
            prefix = _PREFIXES.get(name, "")
            argument = key if key.startswith(prefix) else prefix + key
            if argument not in known:
                check.refuse(found, f"unknown key; {did_you_mean(key, known)}")
            elif argument in entries:
                check.refuse(found, f"is given twice, also at {entries[argument].origin}; keep one")
            else:
                entries[argument] = found
    return {**entries, **flags}


def read_values(model: type[M], entries: Entries, check: Findings) -> M:
    """Return the entries that a model has. Raise ConfigError if they do not fit."""
    keys = keys_of(model)
    values = {name: entry.value for name, entry in entries.items() if name in keys}
    return check.read(model, values, lambda key: entries[key.partition(".")[0]].origin)
