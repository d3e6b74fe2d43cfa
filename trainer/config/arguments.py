"""The command line of a training script and its help.

Settings are written ``--key value``, ``--key=value`` or ``key=value``. Their values stay text here;
the annotations of their keys decide later how they are read.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..errors import COMMAND_LINE, Origin, Problem
from .annotations import choices_of
from .train_config import DEFAULTS, GROUPS, TrainConfig
from .validate import annotations_of, description_of

_SWITCHES = ("help", "print_config")
_FILES = {
    "config": "training config (YAML or JSON): what is trained; FILE as the first word is the same",
    "accel_config": "accelerate YAML: how it runs, where the launcher is not `accelerate launch`",
    "deepspeed": (
        "DeepSpeed JSON: how it runs under the `deepspeed` launcher (or --deepspeed_config)"
    ),
}
_OTHER_SPELLINGS = {"deepspeed_config": "deepspeed", "h": "help"}
_DASHED = re.compile(r"--[A-Za-z_].*|-h", re.DOTALL)
_ASSIGNMENT = re.compile(r"[A-Za-z_][\w.-]*=")


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
    """Take apart what was typed after a training script.

    A key that is true or false may be alone, and then is true. ``--local_rank``, which the
    deepspeed launcher appends, is dropped: the environment has the same.
    """
    arguments = Arguments()
    rest = list(argv)
    while rest:
        token = rest.pop(0)
        if _DASHED.fullmatch(token) or _ASSIGNMENT.match(token):
            _read_option(token, rest, arguments)
        else:
            arguments.words.append(token)

    texts = arguments.texts
    for key in texts:
        parts = [other for other in texts if other.startswith(f"{key}.")]
        if parts:
            rule = f"is given as a whole and in part, as {parts[0]}; keep one"
            arguments.problems.append(_wrong(key, rule))

    texts.pop("local_rank", None)
    for key in _FILES:
        if key in texts:
            arguments.files[key] = os.path.expanduser(texts.pop(key))
    return arguments


def _read_option(token: str, rest: list[str], arguments: Arguments) -> None:
    """Read one option into ``arguments``; its value may be the first word of ``rest``."""
    name, equals, text = token.partition("=")
    key = name.lstrip("-").replace("-", "_")
    key = _OTHER_SPELLINGS.get(key, key)
    if key in _SWITCHES and not equals:
        arguments.switches.add(key)
        return

    if not equals:
        if _has_value(key, rest):
            text = rest.pop(0)
        elif _needs_value(key):
            arguments.problems.append(_wrong(key, f"needs a value: {name} VALUE"))
            return
        else:
            text = "true"

    earlier = arguments.texts.setdefault(key, text)
    if earlier != text:
        rule = f"is given twice, as {earlier!r} and as {text!r}; keep one"
        arguments.problems.append(_wrong(key, rule))


def _has_value(key: str, rest: Sequence[str]) -> bool:
    """Return whether the word after a key is its value, and not the next setting."""
    if not rest or rest[0].startswith("--"):
        return False
    return not (_is_flag(key) and _ASSIGNMENT.match(rest[0]))


def _needs_value(key: str) -> bool:
    is_setting = key in annotations_of(TrainConfig)
    return key in _FILES or (is_setting and not _is_flag(key))


def _is_flag(key: str) -> bool:
    return isinstance(DEFAULTS.get(key), bool)


def _wrong(key: str, rule: str, value: object = None) -> Problem:
    return Problem(origin=Origin(COMMAND_LINE, key=key), rule=rule, value=value)


def misplaced(words: Sequence[str]) -> list[Problem]:
    """Return the problems of words that are neither the training config nor settings."""
    return [_wrong("", "settings are written --key value or key=value", word) for word in words]


def put(root: dict[str, Any], path: Sequence[str], value: Any) -> None:
    """Set ``root[a][b][c]`` for the path a, b, c.

    What is no mapping on the way is replaced by one.
    """
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
    for name, text in _FILES.items():
        lines.append(f"  --{name + ' FILE':37} {text}")
    lines.append(f"  --{'print_config':37} print all values and where they come from, then exit")

    for key, annotation in annotations_of(TrainConfig).items():
        if key in GROUPS:
            lines += ["", GROUPS[key]]
        default = json.dumps(DEFAULTS[key]) if key in DEFAULTS else "required"
        row = f"  --{key:22} {default:14} {description_of(annotation)}"

        choices = choices_of(annotation)
        if choices:
            row += f" (one of {', '.join(map(repr, choices))})"
        lines.append(row)
    return "\n".join(lines)
