"""Where settings come from: defaults < YAML or JSON file < command line, all of it checked, all problems told at once.

Nothing here imports torch, so a wrong key is answered in a blink.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import yaml

from ..errors import ConfigError, Problem
from .annotations import Typed
from .arguments import COMMAND_LINE, Arguments, help_text, misplaced, put, split_arguments
from .documents import Document, Key, read_document
from .train_config import DEFAULTS, ELSEWHERE, GROUPS, TrainConfig, broken_rules, every_steps, without_effect
from .validate import Checker, annotations_of

__all__ = ["Loaded", "TrainConfig", "check_settings", "every_steps", "load_config", "to_yaml"]

S = TypeVar("S")
_FLAGS = frozenset(key for key, default in DEFAULTS.items() if isinstance(default, bool))


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A config and the homes of its values.

    Args:
        config: the resolved values.
        where: dotted key -> ``file:line`` or ``command line``; absent for what is left at its default.
        config_file: the training config, as named on the command line.
        accel_config, deepspeed: the files that say how to run, as named there.
        texts: what was typed, by dotted key: the type of a task's setting is only known with the task.
    """

    config: TrainConfig
    where: Mapping[str, str]
    config_file: str | None = None
    accel_config: str | None = None
    deepspeed: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


def split_command_line(argv: Sequence[str]) -> Arguments:
    """Take apart what was typed after a training script."""
    return split_arguments(argv, flags=_FLAGS, valued=annotations_of(TrainConfig).keys() - _FLAGS)


def load_config(argv: Sequence[str]) -> Loaded:
    """Read the training config that ``argv`` (without the program's name) asks for.

    Raises:
        ConfigError: everything that is wrong with the file and the command line.
        SystemExit: with 0, after ``--help`` or ``--print_config`` was answered.
    """
    typed = split_command_line(argv)
    if "help" in typed.switches:
        print(help_text(TrainConfig, GROUPS))
        raise SystemExit(0)
    document = _document(typed)
    of_file = Checker(lambda key: document.where(*key), ELSEWHERE)
    of_line = Checker(lambda key: COMMAND_LINE, ELSEWHERE)
    values = of_file.settings(TrainConfig, document.data)
    _lay_over(values, of_line.settings(TrainConfig, typed.nested()), typed.texts)
    problems = [*of_file.problems, *typed.problems, *misplaced(typed.words), *of_line.problems]

    where = _homes(document, typed.texts)
    given = {key.split(".")[0] for key in where}
    # A misspelt epochs is one mistake and not also a missing one.
    wrong = {problem.key.split(".")[0] for problem in problems} | {key[0] for key in of_file.meant | of_line.meant}
    whole = Checker(lambda key: _home(where, key, document.path))
    whole.missing(TrainConfig, given | wrong)
    for name, rule, value in broken_rules(values, given, wrong):
        home = _home(where, tuple(name.split(".")), document.path)
        problems.append(Problem(where=home, key=name, rule=rule, value=value))
    if problems := [*whole.problems, *problems]:
        raise ConfigError(problems)

    config = TrainConfig(**values)
    if "print_config" in typed.switches:
        print(_text(config, lambda key: _home(where, key, "default")), end="")
        raise SystemExit(0)
    files = typed.files
    return Loaded(
        config=config,
        where=where,
        config_file=files.get("config"),
        accel_config=files.get("accel_config"),
        deepspeed=files.get("deepspeed"),
        texts=typed.texts,
    )


def check_settings(cls: type[S], settings: Mapping[str, Any], loaded: Loaded) -> S:
    """The task ``cls`` (a frozen, keyword-only dataclass) with these ``task_settings``.

    Raises:
        ConfigError: a setting is unknown, missing or wrong; a ValueError of the task itself is told the same way.
    """
    own = [name for name, kind in inspect.get_annotations(cls).items() if "ClassVar" not in str(kind)]
    if own and "__dataclass_fields__" not in vars(cls):
        rule = f"put @dataclass(frozen=True, kw_only=True) above the class: {', '.join(own)} cannot be set without"
        raise ConfigError(Problem(where=f"{cls.__module__}:{cls.__qualname__}", key="", rule=rule))
    top, values = "task_settings", copy.deepcopy(dict(settings))
    for key, text in loaded.texts.items():
        if key.startswith(f"{top}."):
            put(values, key.split(".")[1:], Typed(text))
    checker = Checker(lambda key: _home(loaded.where, key, _home(loaded.where, ("task",), "TrainConfig")))
    task = checker.build(cls, values, (top,))
    if task is None:
        raise ConfigError(checker.problems)
    return task


def to_yaml(config: TrainConfig) -> str:
    """The resolved config, which reads back as an equal one. Keys without effect on its optimizer are left out."""
    return _text(config, lambda key: "")


def _document(typed: Arguments) -> Document:
    path = typed.files.get("config")
    if path is None:
        return Document(path=COMMAND_LINE, data={})
    try:
        return read_document(path, what="training config")
    except ConfigError as error:
        raise ConfigError([*error.problems, *typed.problems, *misplaced(typed.words)]) from None


def _lay_over(values: dict[str, Any], top: Mapping[str, Any], texts: Mapping[str, str]) -> None:
    """Set those of ``values`` that were typed: the parts of a mapping one by one, so that the others stay."""
    for key in texts:
        first, *parts = key.split(".")
        if first in top:
            value = top[first]
            for part in parts:
                value = value[part]
            put(values, [first, *parts], value)


def _homes(document: Document, texts: Mapping[str, str]) -> dict[str, str]:
    paths = [*document.lines, *((key,) for key in document.data)]
    where = {".".join(path): document.where(*path) for path in paths}
    for key in texts:
        where = {other: home for other, home in where.items() if not other.startswith(f"{key}.")}
        where[key] = COMMAND_LINE
    return where


def _home(where: Mapping[str, str], key: Key, otherwise: str) -> str:
    """The home of a key, or of the nearest mapping around it that has one."""
    parts = [".".join(key[:end]) for end in range(len(key), 0, -1)]
    return next((where[part] for part in parts if part in where), otherwise)


class _Dumper(yaml.SafeDumper):
    """Quotes all text that does not start with a letter: ``1e-3`` is a number to our reader, though not to PyYAML."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, data: str) -> yaml.ScalarNode:
        plain = data.isprintable() and data[:1].isalpha()
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if plain else '"')


_Dumper.add_representer(str, _Dumper.text)


def _dump(value: object) -> str:
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=sys.maxsize, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")


def _text(config: TrainConfig, comment: Callable[[Key], str]) -> str:
    idle = without_effect(config.optimizer)
    settings = {key: value for key, value in vars(config).items() if key not in idle}
    rows = [(row, comment(key) if key else "") for key, row in _rows(settings)]
    width = min(60, max(len(row) for row, _ in rows))
    return "".join(f"{row:{width}}  # {said}\n" if said else f"{row}\n" for row, said in rows)


def _rows(values: Mapping[str, Any], prefix: Key = ()) -> Iterator[tuple[Key, str]]:
    """The lines of a YAML file, each with the key whose value it shows, () where that follows below."""
    for name, value in values.items():
        key, start = (*prefix, name), f"{'  ' * len(prefix)}{_dump(name)}:"
        if isinstance(value, dict) and value:
            yield (), start
            yield from _rows(value, key)
        else:
            yield key, f"{start} {_dump(value)}"
