"""Which keys an accelerate file may have, asked of Accelerate itself.

Accelerate refuses unknown keys at the top level only: nested ones become launcher arguments that nobody
reads. The launcher's own parser knows them all.
"""

from __future__ import annotations

import argparse
import functools
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from types import NoneType
from typing import Any

from ...config.documents import Document
from ...errors import LaunchError
from .check import Check, Given, unknown
from .deepspeed_schema import json_path

# Accelerate adds the prefix itself in these sections (commands/launch.py), so both spellings are known.
_PREFIX_IS_OPTIONAL = ("fsdp_config", "fp8_config", "dynamo_config")
# Keys of older files that ClusterConfig.process_config converts before it compares keys with its fields.
_CONVERTED = ("fp16", "dynamo_backend")
OWNER = "accelerate's config file"
# Read in accelerate_values.py, with rules of their own.
_OTHER_RULES = (
    "compute_environment",
    "distributed_type",
    "mixed_precision",
    "num_machines",
    "num_processes",
    "use_cpu",
)


@dataclass(frozen=True, kw_only=True)
class Section:
    """A nested section: launcher argument names that it may hold."""

    prefix: str
    arguments: frozenset[str]

    @property
    def keys(self) -> set[str]:
        """Every spelling that is known in the file."""
        short = {name.removeprefix(self.prefix) for name in self.arguments} if self.prefix else set()
        return set(self.arguments) | short


@functools.cache
def parser() -> argparse.ArgumentParser:
    from accelerate.commands.launch import launch_command_parser

    made = launch_command_parser()
    assert isinstance(made, argparse.ArgumentParser)
    return made


@functools.cache
def top_level() -> dict[str, Any]:
    """Each known key with its type."""
    from accelerate.commands.config.config_args import ClusterConfig

    return {**typing.get_type_hints(ClusterConfig), **dict.fromkeys(_CONVERTED)}


@functools.cache
def sections() -> dict[str, Section]:
    """The nested sections, from the fields that are mappings and the arguments that they turn into."""
    from accelerate.utils.launch import prepare_multi_gpu_env

    # Some keys (fsdp_ignored_modules) have no argument: the launcher looks them up by name only.
    code = prepare_multi_gpu_env.__code__
    looked_up = {name for name in (*code.co_names, *code.co_consts) if isinstance(name, str)}
    arguments = {action.dest for action in parser()._actions} | looked_up
    found = {}
    for name, hint in top_level().items():
        if dict not in typing.get_args(hint):
            continue
        prefix = f"{name}_" if name == "parallelism_config" else name.removesuffix("config")
        names = {argument for argument in arguments if argument.startswith(prefix)}
        if name == "deepspeed_config":
            groups = [{action.dest for action in group._group_actions} for group in parser()._action_groups]
            names = next(group for group in groups if "zero_stage" in group)
        found[name] = Section(prefix=prefix if name in _PREFIX_IS_OPTIONAL else "", arguments=frozenset(names))
    return found


def check_top_level(doc: Document, check: Check) -> None:
    """Unknown keys and wrong types of the keys that only the launcher needs."""
    known = top_level()
    for key, value in doc.data.items():
        given = Given(value=value, where=doc.where(key), key=key)
        if key not in known:
            if key.startswith("_"):
                check.fail(given, "accelerate refuses keys that it does not know; write a # comment instead")
                continue
            homes = [name for name, section in sections().items() if key in section.arguments]
            belongs = f"it belongs under {homes[0]}" if homes else ""
            check.problems.append(unknown(given, key, known, OWNER, belongs))
            continue
        kinds = typing.get_args(known[key]) or (known[key],)
        if key in _OTHER_RULES or for_tpus(key) or (value is None and NoneType in kinds):
            continue
        if int in kinds:
            check.whole(given, at_least=0)
        elif bool in kinds or key == "fp16":
            check.switch(given, quoted=False)
        elif str in kinds:
            check.text(given)


def for_tpus(key: str) -> bool:
    """Tell whether a key is read on TPUs only."""
    return key.startswith("tpu_") or key in ("downcast_bf16", "commands", "command_file")


def read_section(doc: Document, name: str, check: Check) -> dict[str, Given]:
    """The values of a nested section by launcher argument name; null counts as absent, as in Accelerate."""
    data, section = doc.data.get(name), sections()[name]
    if data is None:
        return {}
    if not isinstance(data, dict):
        check.fail(Given(value=data, where=doc.where(name), key=name), "must be a mapping")
        return {}
    found: dict[str, Given] = {}
    for raw, value in data.items():
        key = str(raw)
        if key.startswith("_"):
            continue  # a comment
        argument = key if key in section.arguments else section.prefix + key
        given = Given(value=value, where=doc.where(name, key), key=f"{name}.{key}")
        if argument not in section.arguments:
            check.problems.append(unknown(given, key, section.keys, OWNER, _belongs(key, name, section)))
        elif argument in found:
            first = found[argument]
            check.fail(given, f"stands twice, also as {first.key} at {first.where}; keep one")
        elif value is not None:
            found[argument] = given
    return found


def _belongs(key: str, name: str, section: Section) -> str:
    full = f"{name}_{key}"
    if full in section.arguments:
        return f"did you mean {full!r}?"
    if key in top_level():
        return "it belongs at the top level"
    others = [other for other, candidate in sections().items() if key in candidate.arguments]
    if others or name != "deepspeed_config":
        return f"it belongs under {others[0]}" if others else ""
    try:
        path = json_path(key)
    except LaunchError:  # DeepSpeed is not installed
        return ""
    return f"it is {'.'.join(path)} of DeepSpeed's JSON: name one with deepspeed_config_file" if path else ""


def with_flags(entries: Mapping[str, Given], flags: Mapping[str, Given], name: str) -> dict[str, Given]:
    """A flag wins over its file."""
    arguments = sections()[name].arguments
    return {**entries, **{argument: given for argument, given in flags.items() if argument in arguments}}
