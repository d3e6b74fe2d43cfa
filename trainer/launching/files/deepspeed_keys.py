"""The keys of a DeepSpeed JSON held against the table: unknown ones, wrong types, and those that change nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...config.documents import Document, Key
from ...config.validate import Validator
from ...errors import Sourced
from ...text import nearest
from .tables import annotation, deepspeed_keys, table

OWNER = "DeepSpeed's JSON"
_COMPILE = "write compile: true in the training config, or dynamo_config in an accelerate YAML"


def read_values(doc: Document, stage: int | None, check: Validator) -> dict[str, Sourced[Any]]:
    """Return the values that may stand where they do, by dotted key, without "auto" and null; record all else."""
    rules, values = table("deepspeed"), dict(_values(doc, (), doc.data, check))
    for section, reason in rules["idle"].items():
        found = doc.at(section)
        if found is not None and found.value:
            check.notice(found, f"no effect {reason}")
    zero = doc.data.get("zero_optimization")
    if stage in (1, 2) and isinstance(zero, dict):
        typed = [key for key, value in zero.items() if value != "auto" and _switched_on(value)]
        if idle := [key for key in typed if key.startswith(tuple(rules["stage_3"]))]:
            place = doc.origin(("zero_optimization", idle[0])).place
            check.notices.append(f"{place}: no effect in stage {stage}: {', '.join(idle)}")
    return values


def _values(doc: Document, path: Key, data: Mapping[str, Any], check: Validator) -> Any:
    rules, known = table("deepspeed"), deepspeed_keys(path) or {}
    for key, value in data.items():
        here, name = (*path, str(key)), ".".join((*path, str(key)))
        found = Sourced(value, doc.origin(here))
        if _is_ignored(name):
            continue
        if name in rules["refused"] or name in rules["removed"]:
            if _switched_on(value):
                words = rules["removed"].get(name, "") if name not in rules["refused"] else ""
                check.refuse(found, f"DeepSpeed: {words}" if words else "not supported by samecurve; remove it")
        elif key not in known:
            check.unknown(found, known, here, _belongs(here, known))
        elif value == "auto":
            if name not in rules["auto"] and ".".join(path) not in rules["models"]:
                check.refuse(found, '"auto" is not resolved here; write a value, or remove the key')
        elif value is None:
            continue
        elif isinstance(known[key], dict):
            if isinstance(value, dict):
                yield from _values(doc, here, value, check)
            else:
                check.refuse(found, "must be a mapping")
        elif (rule := _only(name, value)) is not None:
            check.refuse(found, rule)
        elif known[key] == "any" and isinstance(value, str) and _is_number(value):
            check.refuse(found, "is text; remove the quotes")
        elif check.read(annotation(known[key]), found) is not None:
            yield name, found


def _is_ignored(name: str) -> bool:
    """Tell whether a key is a comment, or Accelerate's to set: DeepSpeed prints nothing."""
    return name.rpartition(".")[2].startswith("_") or name == "steps_per_print"


def _only(name: str, value: object) -> str | None:
    """Return why a value cannot be had here."""
    only, reason = table("deepspeed")["only"].get(name, (value, ""))
    return None if value == only or str(value).lower() == only else f"{reason}; remove it"


def _belongs(path: Key, known: Mapping[str, Any]) -> str:
    """Return where an unknown key belongs; "" where it looks like a misspelling."""
    *section, name = path
    owners = [owner for owner in ("zero_optimization", "fp16", "bf16") if name in (deepspeed_keys((owner,)) or ())]
    if section == ["bf16"] and owners == ["fp16"]:
        return "bf16 needs no loss scale; remove it"
    if section == ["compile"] and not nearest(name, known):
        return f"DeepSpeed has none of this name; {_COMPILE}"
    return f"it belongs under {owners[0]}" if owners else ""


def _is_number(text: str) -> bool:
    """Tell whether text in quotes is a number or a truth value that lost its type."""
    try:
        float(text)
    except ValueError:
        return text.lower() in ("true", "false")
    return True


def _switched_on(value: object) -> bool:
    if isinstance(value, dict):
        return value.get("enabled", True) is not False
    return value not in (None, False, -1, 0, 1) or value is True


def effective(data: Mapping[str, Any], path: Key = ()) -> dict[str, Any]:
    """Return a copy of what counts: without "auto", for which DeepSpeed's defaults hold, comments, and what is off."""
    rules, found = table("deepspeed"), {}
    for key, value in data.items():
        here = (*path, key)
        name = ".".join(here)
        off = name in (*rules["refused"], *rules["removed"]) and not _switched_on(value)
        if value != "auto" and not off and not _is_ignored(name):
            found[key] = effective(value, here) if isinstance(value, dict) else value
    return found
