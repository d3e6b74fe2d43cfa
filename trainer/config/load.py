"""The training config, read from defaults, a YAML or JSON file, and the command line.

The command line wins over the file, the file over the defaults. All problems are reported at once.
Nothing here imports torch, so a wrong key is answered quickly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

from ..errors import COMMAND_LINE, DEFAULT, ConfigError, Origin, Problem
from ..text import HIDDEN, printable
from .arguments import help_text, misplaced, put, split_command_line
from .documents import Document, Key, read_document, read_table
from .dump import to_yaml
from .naming import resolve_names
from .placeholders import TEMPLATES
from .rules import check_rules
from .train_config import DEFAULTS, TrainConfig
from .typed import Typed
from .validate import Validator, annotations_of

S = TypeVar("S")
_ALIASES = Path(__file__).with_name("aliases.yaml")
_NO_FILE = Document(path=COMMAND_LINE, data={})


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A config, and the origins of its values.

    Args:
        config: the resolved values.
        origins: by dotted key; absent for what is left at its default. ``load_task`` adds those of
            the task's defaults.
        config_file: the training config, as named on the command line.
        accel_config, deepspeed: the files that say how to run, as named there.
        texts: what was typed, by dotted key; the type of a task's setting is known with the task
            only.
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
        resolved = vars(resolve_names(shown, None, loaded.origins))

        def place(key: Key) -> str:
            origin = origin_of(loaded.origins, key, DEFAULT.source).place
            [name, *below] = key
            if below or name not in TEMPLATES or resolved[name] == vars(shown)[name]:
                return origin
            return f"{origin}: {printable(resolved[name])}"

        print(to_yaml(shown, place), end="")
        raise SystemExit(0)
    return loaded


def load_task_part(argv: Sequence[str]) -> Loaded | None:
    """Return the task's part of a config alone; None where it cannot be read.

    So the task's settings can be checked although other keys are wrong.
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
    """The contents of file and command line; ``check`` has their problems.

    Args:
        values: of the keys that are right.
        origins, config_file, files, texts: as in ``Loaded``.
        switches: such as ``print_config``.
    """

    check: Validator
    values: Mapping[str, Any]
    origins: dict[str, Origin]
    config_file: str | None
    files: Mapping[str, str]
    texts: Mapping[str, str]
    switches: Collection[str]


def _read(argv: Sequence[str]) -> _Read:
    """Read and check a config.

    Raises:
        ConfigError: the file cannot be read.
        SystemExit: with 0, after ``--help`` was answered.
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
    given = _with_typed(document.data, typed.texts)
    check = Validator(lambda key: origin_of(origins, key, document.path), read_table(_ALIASES))
    check.problems += problems
    values = check.settings(TrainConfig, given)
    check.missing(TrainConfig, {*given, *(problem.key for problem in check.problems)})
    check_rules(check, DEFAULTS, values)
    _check_secrets(check, given)

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
        ConfigError: a setting is unknown, missing or wrong, or the task itself raised a ValueError.
    """
    _check_is_dataclass(cls)
    top = "task_settings"
    texts = {key: text for key, text in loaded.texts.items() if key.startswith(f"{top}.")}
    values = _with_typed({top: settings}, texts)

    place_of_task = origin_of(loaded.origins, ("task",), "TrainConfig").place
    aliases = _aliases_below(top, annotations_of(cast(type, cls)))
    check = Validator(lambda key: origin_of(loaded.origins, key, place_of_task), aliases)
    task = check.build(cls, values[top], (top,))
    if task is None:
        raise ConfigError(check.problems)
    return task


def _check_is_dataclass(cls: type) -> None:
    """Raise ConfigError where a class has annotations of its own, but no decorator."""
    annotations = inspect.get_annotations(cls)
    own = [name for name, annotation in annotations.items() if "ClassVar" not in str(annotation)]
    if own and "__dataclass_fields__" not in vars(cls):
        rule = (
            "put @dataclass(frozen=True, kw_only=True) above the class: "
            f"{', '.join(own)} cannot be set without"
        )
        raise ConfigError(Problem(origin=Origin(f"{cls.__module__}:{cls.__qualname__}"), rule=rule))


def _aliases_below(section: str, known: Collection[str]) -> dict[str, str]:
    """Return the aliases of keys of a section, as they are written in it.

    Args:
        known: the keys that the section has; there are no aliases of others.
    """
    aliases = {}
    for alias, key in read_table(_ALIASES).items():
        first, _, below = key.partition(".")
        if first == section and below.partition(".")[0] in known:
            aliases[f"{section}.{alias}"] = below
    return aliases


def _check_secrets(check: Validator, given: Mapping[str, Any]) -> None:
    """Record a problem for each secret that the config of an old run does not have."""
    for key in _hidden_keys(given):
        rule = f"a secret, which is not written down; give it again: --{'.'.join(key)} VALUE"
        check.record(key, rule, HIDDEN)


def _hidden_keys(values: object, above: Key = ()) -> Iterator[Key]:
    """Yield the keys at any depth whose value is the mark of a secret."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _hidden_keys(value, (*above, str(name)))
    elif isinstance(values, list):
        for number, value in enumerate(values):
            yield from _hidden_keys(value, (*above, str(number)))
    elif values == HIDDEN:
        yield above


def _with_typed(values: Mapping[str, Any], texts: Mapping[str, str]) -> dict[str, Any]:
    """Return ``values`` with those that were typed.

    The parts of a mapping are replaced one by one, so that the others stay.
    """
    merged = dict(values)
    for key, text in texts.items():
        put(merged, key.split("."), Typed(text))
    return merged


def _origins(document: Document, texts: Mapping[str, str]) -> dict[str, Origin]:
    """Return where each value was set, by dotted key."""
    paths = [*document.origins, *((key,) for key in document.data)]
    origins = {".".join(path): document.origin(path) for path in paths}

    for key in texts:
        below = [other for other in origins if other.startswith(f"{key}.")]
        for other in below:
            del origins[other]
        origins[key] = Origin(COMMAND_LINE, key=key)

        first = key.split(".")[0]
        if not isinstance(document.data.get(first), dict):
            origins[first] = origins[key]
    return origins


def origin_of(origins: Mapping[str, Origin], key: Key, otherwise: str) -> Origin:
    """Return where a key was set: its own place, or that of the nearest mapping around it."""
    for end in range(len(key), 0, -1):
        part = ".".join(key[:end])
        if part in origins:
            return origins[part].named(".".join(key))
    return Origin(otherwise).named(".".join(key))
