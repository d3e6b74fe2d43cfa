"""The training config: defaults < YAML or JSON file < command line, all of it checked, all problems
at once.

Nothing here imports torch, so a wrong key is answered in a blink.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from ..errors import COMMAND_LINE, DEFAULT, ConfigError, Origin, Problem
from ..text import HIDDEN
from .annotations import Typed
from .arguments import help_text, misplaced, put, split_command_line
from .documents import Document, Key, read_document, read_table
from .dump import to_yaml
from .train_config import TrainConfig, check_rules
from .validate import Validator, annotations_of

S = TypeVar("S")
_ALIASES = Path(__file__).with_name("aliases.yaml")
_NO_FILE = Document(path=COMMAND_LINE, data={})


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A config and the origins of its values.

    Args:
        config: the resolved values.
        origins: by dotted key; absent for what is left at its default. ``load_task`` adds those of
            the task's defaults.
        config_file: the training config, as named on the command line.
        accel_config, deepspeed: the files that say how to run, as named there.
        texts: what was typed, by dotted key: the type of a task's setting is only known with the
            task.
    """

    config: TrainConfig
    origins: dict[str, Origin]
    config_file: str | None = None
    accel_config: str | None = None
    deepspeed: str | None = None
    texts: Mapping[str, str] = field(default_factory=dict)


def load_config(
    argv: Sequence[str], *, complete: Callable[[Loaded], TrainConfig] | None = None
) -> Loaded:
    """Read the training config that ``argv`` (without the program's name) asks for.

    Args:
        complete: returns what ``--print_config`` is to show; by default what was read.

    Raises:
        ConfigError: everything that is wrong with the file and the command line.
        SystemExit: with 0, after ``--help`` or ``--print_config`` was answered.
    """
    read = _read(argv)
    check = read.check
    if check.problems:
        raise ConfigError(check.problems)

    config = TrainConfig(**read.values)
    loaded = Loaded(
        config=config,
        origins=read.origins,
        config_file=read.config_file,
        texts=read.texts,
        **read.files,
    )
    if "print_config" in read.switches:
        shown = config if complete is None else complete(loaded)
        print(
            to_yaml(shown, lambda key: _origin(loaded.origins, key, DEFAULT.source).place), end=""
        )
        raise SystemExit(0)
    return loaded


def load_task_part(argv: Sequence[str]) -> Loaded | None:
    """Return what a config says of the task alone, so that its settings can be checked where other
    keys are wrong.

    None where that cannot be read.
    """
    try:
        read = _read(argv)
    except ConfigError:
        return None
    part = {key: read.values[key] for key in ("task", "task_settings") if key in read.values}
    if "task" not in part or any(problem.key == "task_settings" for problem in read.check.problems):
        return None
    config = TrainConfig(**part, max_steps=1)
    return Loaded(
        config=config, origins=read.origins, config_file=read.config_file, texts=read.texts
    )


@dataclass(frozen=True, kw_only=True)
class _Read:
    """What file and command line say, with their problems in ``check``; the rest as of ``Loaded``.

    Args:
        values: of the keys that are right.
    """

    check: Validator
    values: Mapping[str, Any]
    origins: dict[str, Origin]
    config_file: str | None
    files: Mapping[str, str]
    texts: Mapping[str, str]
    switches: Collection[str]


def _read(argv: Sequence[str]) -> _Read:
    """Read and check a config. Raises ConfigError where the file cannot be read, SystemExit after
    ``--help``.
    """
    typed = split_command_line(argv)
    if "help" in typed.switches:
        print(help_text())
        raise SystemExit(0)
    files, words = dict(typed.files), list(typed.words)
    path = files.pop("config", None)
    if path is None and words and words[0].endswith((".yaml", ".yml", ".json")):
        path = words.pop(0)
    problems = [*typed.problems, *misplaced(words)]
    try:
        document = _NO_FILE if path is None else read_document(path, what="training config")
    except ConfigError as error:
        raise ConfigError([*error.problems, *problems]) from None
    origins = _origins(document, typed.texts)
    given = _laid_over(document.data, typed.texts)
    check = Validator(lambda key: _origin(origins, key, document.path), read_table(_ALIASES))
    check.problems += problems
    values = check.settings(TrainConfig, given)
    check.missing(TrainConfig, {*given, *(problem.key for problem in check.problems)})
    check_rules(check, values, given)
    for key in _hidden_keys(given):
        rule = f"a secret, which is not written down; give it again: --{'.'.join(key)} VALUE"
        check.problems.append(
            Problem(origin=_origin(origins, key, document.path), value=HIDDEN, rule=rule)
        )
    return _Read(
        check=check,
        values=values,
        origins=origins,
        config_file=path,
        files=files,
        texts=typed.texts,
        switches=typed.switches,
    )


def check_settings(cls: type[S], settings: Mapping[str, Any], loaded: Loaded) -> S:
    """Return the task ``cls`` (a frozen, keyword-only dataclass) with these ``task_settings``.

    Raises:
        ConfigError: a setting is unknown, missing or wrong; a ValueError of the task itself is told
            the same way.
    """
    own = [
        name for name, hint in inspect.get_annotations(cls).items() if "ClassVar" not in str(hint)
    ]
    if own and "__dataclass_fields__" not in vars(cls):
        rule = f"put @dataclass(frozen=True, kw_only=True) above the class: {', '.join(own)} cannot be set without"
        raise ConfigError(Problem(origin=Origin(f"{cls.__module__}:{cls.__qualname__}"), rule=rule))
    top = "task_settings"
    values = _laid_over(
        {top: settings},
        {key: text for key, text in loaded.texts.items() if key.startswith(f"{top}.")},
    )
    task_at = _origin(loaded.origins, ("task",), "TrainConfig").place
    aliases = _aliases_below(top, annotations_of(cast(type, cls)))
    validator = Validator(lambda key: _origin(loaded.origins, key, task_at), aliases)
    task = validator.build(cls, values[top], (top,))
    if task is None:
        raise ConfigError(validator.problems)
    return task


def _aliases_below(section: str, known: Collection[str]) -> dict[str, str]:
    """Return the aliases of keys below a section, as they are written there; of keys that it does
    not have none.
    """
    found = {}
    for alias, meant in read_table(_ALIASES).items():
        first, _, rest = meant.partition(".")
        if first == section and rest.partition(".")[0] in known:
            found[f"{section}.{alias}"] = rest
    return found


def _hidden_keys(values: object, above: Key = ()) -> Iterator[Key]:
    """Yield the keys at any depth that hold no value but the mark of a secret."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _hidden_keys(value, (*above, str(name)))
    elif values == HIDDEN:
        yield above


def _laid_over(values: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return ``values`` with those that were typed: the parts of a mapping one by one, so that the
    others stay.
    """
    whole = dict(values)
    for key, text in texts.items():
        put(whole, key.split("."), Typed(text))
    return whole


def _origins(document: Document, texts: Mapping[str, str]) -> dict[str, Origin]:
    paths = [*document.origins, *((key,) for key in document.data)]
    origins = {".".join(path): document.origin(path) for path in paths}
    for key in texts:
        origins = {
            other: origin for other, origin in origins.items() if not other.startswith(f"{key}.")
        }
        origins[key] = Origin(COMMAND_LINE, key=key)
        first = key.split(".")[0]
        if not isinstance(document.data.get(first), dict):
            origins[first] = origins[key]
    return origins


def _origin(origins: Mapping[str, Origin], key: Key, otherwise: str) -> Origin:
    """Return the place of a key, or of the nearest mapping around it that has one, as the origin of
    the key.
    """
    around = (".".join(key[:end]) for end in range(len(key), 0, -1))
    found = next((origins[part] for part in around if part in origins), Origin(otherwise))
    return found.named(".".join(key))
