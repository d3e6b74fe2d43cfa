"""The entries of an accelerate file, under keys that the installed Accelerate knows.

A key of a section is an argument of ``accelerate launch``, so that command's parser knows the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BeforeValidator

from ...config.documents import Document
from ...config.findings import Findings, M
from ...errors import Sourced
from ...private.accelerate import launch_arguments
from ...text import did_you_mean

# The values of a file and its flags, by key of the top level or by argument of the launcher.
Entries = Mapping[str, Sourced[Any]]

Lower = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
Upper = BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)


def read_entries(doc: Document | None, flags: Entries, check: Findings) -> Entries:
    """Return the entries of all sections together. A flag wins over the file.

    A section may have any argument of the launcher, whose prefix may be left out.
    """
    from accelerate.commands.config.config_args import ClusterConfig

    if doc is None:
        return flags
    # Accelerate reads these two keys by name. They have no field and no argument.
    top_level = {*ClusterConfig.__dataclass_fields__, "dynamo_backend"}
    arguments = {*launch_arguments(), "fsdp_ignored_modules"}

    entries: dict[str, Sourced[Any]] = {}
    for name, part in doc.data.items():
        values, known, above, prefix = {name: part}, top_level, "", ""
        if name.endswith("_config") and name in top_level:
            values, known, above = part or {}, arguments, f"{name}."
            prefix = name.removesuffix("config")
        if not isinstance(values, dict):
            check.fail(Sourced(values, doc.origin(name)), "must be a mapping")

        for key, value in values.items():
            if value is None or key.startswith("_"):  # absent, or a comment
                continue
            found = Sourced(value, doc.origin(above + key))
            argument = key if key in known else prefix + key
            if argument not in known:
                check.refuse(found, f"unknown key; {did_you_mean(key, known)}")
            elif argument in entries:
                check.refuse(found, f"is given twice, also at {entries[argument].origin}; keep one")
            else:
                entries[argument] = found
    return {**entries, **flags}


def read_values(model: type[M], entries: Entries, check: Findings) -> M:
    """Return the entries that a model has. Raise ConfigError if they do not fit."""
    values = {name: entry.value for name, entry in entries.items()}
    return check.read(model, values, lambda key: entries[key.partition(".")[0]].origin)
