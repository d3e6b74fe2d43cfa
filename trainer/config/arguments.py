"""The command line of a training script: ``--key value``, ``--key=value`` or ``key=value``; and its
help.

Values stay text here; the annotations of their keys decide later how they are read.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import COMMAND_LINE, Origin, Problem
from .annotations import name_of, union_members, unpacked
from .train_config import DEFAULTS, GROUPS, TrainConfig
from .validate import annotations_of, default_of

_SWITCHES = ("help", "print_config")
_FILES = {
    "config": "training config (YAML or JSON): what is learnt; FILE as the first word is the same",
    "accel_config": "accelerate YAML: how it runs, where the launcher is not `accelerate launch`",
    "deepspeed": "DeepSpeed JSON: how it runs under the `deepspeed` launcher (or --deepspeed_config)",
}
_SAME = {"deepspeed_config": "deepspeed", "h": "help"}


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """A command line, taken apart.

    Args:
        texts: the settings, by dotted key.
        files, switches: the options that are no settings.
        words: what is neither.
        problems: what cannot be read.
    """

    texts: dict[str, str] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    switches: set[str] = field(default_factory=set)
    words: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def split_command_line(argv: Sequence[str]) -> Arguments:
    """Take apart what was typed after a training script; a key that is true or false may stand
    alone, and then is true.

    ``--local_rank``, which the deepspeed launcher appends, is dropped: the environment says the
    same.
    """
    typed = Arguments()
    texts, rest = typed.texts, list(argv)
    while rest:
        token = rest.pop(0)
        name, equals, text = token.partition("=")
        if not (
            re.match(r"--[A-Za-z_]", token)
            or token == "-h"
            or re.fullmatch(r"[A-Za-z_][\w.-]*=", name + equals)
        ):
            typed.words.append(token)
            continue
        key = name.lstrip("-").replace("-", "_")
        key = _SAME.get(key, key)
        if key in _SWITCHES and not equals:
            typed.switches.add(key)
            continue
        if not equals:
            alone = not rest or rest[0].startswith("--")
            is_flag = isinstance(DEFAULTS.get(key), bool)
            if alone or (is_flag and re.match(r"[A-Za-z_][\w.-]*=", rest[0])):
                if key in _FILES or (key in annotations_of(TrainConfig) and not is_flag):
                    typed.problems.append(_wrong(key, f"needs a value: {name} VALUE"))
                    continue
                text = "true"
            else:
                text = rest.pop(0)
        if texts.setdefault(key, text) != text:
            typed.problems.append(
                _wrong(key, f"is given twice, as {texts[key]!r} and as {text!r}; keep one")
            )
    for key in texts:
        if part := next((other for other in texts if other.startswith(f"{key}.")), None):
            typed.problems.append(
                _wrong(key, f"is given as a whole and in part, as {part}; keep one")
            )
    texts.pop("local_rank", None)
    typed.files.update({key: os.path.expanduser(texts.pop(key)) for key in _FILES if key in texts})
    return typed


def _wrong(key: str, rule: str, value: object = None) -> Problem:
    return Problem(origin=Origin(COMMAND_LINE, key=key), rule=rule, value=value)


def misplaced(words: Sequence[str]) -> list[Problem]:
    """Return the problems of words that are neither the training config nor settings."""
    return [_wrong("", "settings are written --key value or key=value", word) for word in words]


def put(root: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set ``root[a][b][c]`` for the path a, b, c; what is no mapping on the way gives place to one."""
    *parents, last = path
    for name in parents:
        # A copy, for the mapping may belong to a config that is frozen.
        root[name] = dict(root[name]) if isinstance(root.get(name), dict) else {}
        root = root[name]
    root[last] = value


def help_text() -> str:
    """Return a table of all keys of the training config."""
    lines = [
        "usage: trainer train | SCRIPT.py [FILE] [--key value | --key=value | key=value] ...",
        "",
        "Files and switches",
    ]
    lines += [f"  --{name + ' FILE':37} {text}" for name, text in _FILES.items()]
    lines.append(f"  --{'print_config':37} print all values and where they come from, then exit")
    annotations = annotations_of(TrainConfig)
    for setting in dataclasses.fields(TrainConfig):
        if setting.name in GROUPS:
            lines += ["", GROUPS[setting.name]]
        annotation, about = unpacked(annotations[setting.name])
        choices = name_of(union_members(annotation))
        allowed = f" ({choices})" if choices.startswith("one of") else ""
        lines.append(f"  --{setting.name:22} {_default(setting):14} {about.help}{allowed}")
    return "\n".join(lines)


def _default(setting: dataclasses.Field[Any]) -> str:
    value = default_of(setting)
    return "required" if value is dataclasses.MISSING else json.dumps(value)
