"""The entries of an accelerate file, under keys that the installed Accelerate knows.

A key of a section is an argument of ``accelerate launch``, so that command's parser knows the keys.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ValidationError

from ...config.documents import Document
from ...errors import Origin, Sourced, config_error
from ...private.accelerate import launch_arguments
from ...text import did_you_mean

M = TypeVar("M", bound=BaseModel)
# The values of a file and its flags, by key of the top level or by argument of the launcher.
Entries = Mapping[str, Sourced[Any]]

Lower = BeforeValidator(lambda value: value.lower() if isinstance(value, str) else value)
Upper = BeforeValidator(lambda value: value.upper() if isinstance(value, str) else value)


def read_entries(doc: Document | None, flags: Entries) -> Entries:
    """Return the entries of all sections together. A flag wins over the file.

    A section may have any argument of the launcher, whose prefix may be left out.
    """
    from accelerate.commands.config.config_args import ClusterConfig

    if not doc:
        return flags
    # Accelerate reads these two keys by name. They have no field and no argument.
    top_level = {*ClusterConfig.__dataclass_fields__, "dynamo_backend"}
    arguments = {*launch_arguments(), "fsdp_ignored_modules"}

    entries: dict[str, Sourced[Any]] = {}
    for name, part in doc.data.items():
        section = name if name.endswith("_config") and name in top_level else ""
        known = arguments if section else top_level
        prefix = section.removesuffix("config")
        values = (part or {}) if section else {name: part}
        if not isinstance(values, dict):
            raise doc.origin(name).error("must be a mapping", values)

        for key, value in values.items():
            if value is None or key.startswith("_"):  # absent, or a comment
                continue
            found = Sourced(value, doc.origin(f"{section}.{key}".lstrip(".")))
            argument = key if key in known else prefix + key
            if argument not in known:
                raise found.error(f"unknown key; {did_you_mean(key, known)}")
            if argument in entries:
                raise found.error(f"is given twice, also at {entries[argument].origin}; keep one")
            entries[argument] = found
    return {**entries, **flags}


def read_values(model: type[M], entries: Entries) -> M:
    """Return the entries that a model has. Raise ConfigError if they do not fit."""
    values = {name: entry.value for name, entry in entries.items()}
    return read_model(model, values, lambda key: entries[key.partition(".")[0]].origin)


def read_model(model: type[M], values: Mapping[str, Any], origin: Callable[[str], Origin]) -> M:
    """Return values as a pydantic model.

    Raises:
        ConfigError: with the origin of each value that does not fit.
    """
    try:
        return model.model_validate_json(json.dumps(values))
    except ValidationError as error:
        from ...config.pydantic_errors import broken_rules

        raise config_error(broken_rules(error, values, model.model_fields), origin) from None


def merge(settings: dict[str, Sourced[Any]], others: Entries) -> None:
    """Add values to others, before which defaults do not count. ConfigError: two disagree."""
    for key, found in others.items():
        other = settings.setdefault(key, found)
        if other.value != found.value and not found.origin.is_default:
            raise found.disagrees(other)
