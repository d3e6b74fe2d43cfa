"""Strict reading of YAML and JSON: duplicate keys, tabs and trailing commas are errors with a line.

A ``Document`` remembers on which line each key stands, so that every later complaint can name it.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError, Origin, Problem, Sourced
from .paths import not_local

Key = tuple[str, ...]
_MOST_VALUES = 100_000  # of a file; an alias counts as often as it stands for something


@dataclass(frozen=True, kw_only=True)
class Document:
    """A parsed file. ``data`` is the root mapping, ``origins`` gives the line of each key path."""

    path: str
    data: dict[str, Any]
    origins: Mapping[Key, Origin] = field(default_factory=dict)

    def origin(self, key: Key) -> Origin:
        """Return the origin of a key: its line, or that of the nearest parent that stands in the
        file.
        """
        around = (
            self.origins[key[:end]]
            for end in range(len(key) - 1, 0, -1)
            if key[:end] in self.origins
        )
        return self.origins.get(key) or next(around, Origin(self.path)).named(".".join(key))

    def at(self, *key: str) -> Sourced[Any] | None:
        """Return what stands in the file under ``key``; None where nothing does."""
        data: Any = self.data
        for name in key:
            if not isinstance(data, dict) or name not in data:
                return None
            data = data[name]
        return Sourced(data, self.origin(key))

    def paths(self, *above: str) -> Iterator[Key]:
        """Yield every key below ``above``, at any depth."""
        found = self.at(*above)
        for name in found.value if found is not None and isinstance(found.value, dict) else ():
            yield (*above, name)
            yield from self.paths(*above, name)


def read_document(path: str | Path, *, what: str = "file") -> Document:
    """Read ``.yaml``, ``.yml`` or ``.json``. ``what`` names the file's role in errors.

    Raises:
        ConfigError: missing, empty, not a mapping at the root, not parseable, or with duplicate
            keys.
    """
    name = str(path)
    if not_local(name):
        raise _wrong(name, not_local(name))
    try:
        text = Path(os.path.expanduser(path)).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _wrong(name, f"the {what} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(name, f"the {what} cannot be read: {error}") from None
    if not text.strip():
        raise _wrong(name, f"the {what} is empty")
    data, lines = (_parse_json if name.endswith(".json") else _parse_yaml)(name, text)
    if not isinstance(data, dict):
        kind = "nothing" if data is None else f"a {type(data).__name__}"
        raise _wrong(name, f"the root of the {what} must be a mapping, not {kind}")
    origins = {key: Origin(name, line, ".".join(key)) for key, line in lines.items()}
    return Document(
        path=name, data={str(key): value for key, value in data.items()}, origins=origins
    )


@functools.cache
def read_table(path: Path) -> dict[str, Any]:
    """Read a YAML file of this package, which needs no checks: by libyaml, which takes a tenth of
    the time.
    """
    loader = getattr(
        yaml, "CSafeLoader", yaml.SafeLoader
    )  # absent where PyYAML was built without libyaml
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    return found


def _wrong(path: str, rule: str, line: int | None = None, key: str = "") -> ConfigError:
    return ConfigError(Problem(origin=Origin(path, line, key), rule=rule))


class _Loader(yaml.SafeLoader):
    """A SafeLoader whose numbers are what they look like.

    YAML 1.1 reads ``1e-3`` as text, ``010`` as 8 and ``1:30`` as 90. Here the first is a number and
    the others are text, which files must not leave in doubt (``_ODD_NUMBER``).
    """


_REAL = r"^[-+]?((\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.(inf|Inf|INF))$|^\.(nan|NaN|NAN)$"
_INT, _FLOAT = "tag:yaml.org,2002:int", "tag:yaml.org,2002:float"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag not in (_INT, _FLOAT)]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    _INT, re.compile(r"^[-+]?(0|[1-9][\d_]*|0b[01_]+|0x[\da-fA-F_]+)$"), list("-+0123456789")
)
_Loader.add_implicit_resolver(_FLOAT, re.compile(_REAL), list("-+.0123456789"))
# What YAML 1.1 reads to the base 8 or 60.
_ODD_NUMBER = re.compile(r"[-+]?(0[\d_]*\d|\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?)")


def parse_scalar(text: str) -> Any:
    """Return the value of a command-line argument, read as YAML would read it in a file."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError):  # ValueError: looks like a date or a number, and is none
        return text


def _parse_yaml(path: str, text: str) -> tuple[Any, dict[Key, int]]:
    language = "JSON" if path.endswith(".json") else "YAML"
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        lines: dict[Key, int] = {}
        _walk(path, node, (), lines, itertools.count(1))
        return loader.construct_document(node) if node is not None else None, lines
    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        mark, rule = error.problem_mark, str(error.problem)
        if (
            mark is not None
            and "\t" in text.splitlines()[min(mark.line, len(text.splitlines()) - 1)]
        ):
            rule = "a tab: YAML is indented with spaces only"
        raise _wrong(
            path, f"not valid {language}: {rule}", None if mark is None else mark.line + 1
        ) from None
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # ValueError: an impossible date or number
        raise _wrong(path, f"not valid {language}: {_first_words(error)}") from None


def _walk(
    path: str, node: yaml.Node | None, prefix: Key, lines: dict[Key, int], count: Iterator[int]
) -> None:
    """Note the line of every key in ``lines``; refuse what other readers take for another number
    than it looks like.
    """
    if next(count) > _MOST_VALUES:
        raise _wrong(
            path,
            f"stands for more than {_MOST_VALUES:,} values; do its aliases (*name) repeat each other?",
        )
    if len(prefix) > 64:
        raise _wrong(path, "nested too deeply, or an alias that contains itself")
    if (
        isinstance(node, yaml.ScalarNode)
        and node.style is None
        and _ODD_NUMBER.fullmatch(node.value)
    ):
        base, line = 60 if ":" in node.value else 8, node.start_mark.line + 1
        rule = f"YAML takes it to the base {base}; write a plain number, or '{node.value}' in quotes if it is text"
        raise _wrong(path, f"{node.value}: {rule}", line, ".".join(prefix))
    if isinstance(node, yaml.SequenceNode):
        for index, item in enumerate(node.value):
            _walk(path, item, (*prefix, str(index)), lines, count)
    if not isinstance(node, yaml.MappingNode):
        return
    for key_node, value_node in node.value:
        key = (*prefix, str(key_node.value))
        line = key_node.start_mark.line + 1
        if key in lines:
            raise _wrong(
                path,
                f"the key stands twice, first on line {lines[key]}; keep one",
                line,
                ".".join(key),
            )
        lines[key] = line
        _walk(path, value_node, key, lines, count)


def _parse_json(path: str, text: str) -> tuple[Any, dict[Key, int]]:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        before = text[: error.pos].rstrip()
        comma = before.endswith(",") or (error.msg.startswith("Illegal trailing comma"))
        row = text.splitlines()[error.lineno - 1].strip()
        comment = row.startswith(("//", "/*", "#"))
        rule = (
            "a trailing comma: remove it"
            if comma
            else "a comment, which JSON has not"
            if comment
            else error.msg
        )
        line = before.count("\n") + 1 if comma else error.lineno
        raise _wrong(path, f"not valid JSON: {rule}", line) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # ValueError: a number of more digits than Python takes
        raise _wrong(path, f"not valid JSON: {_first_words(error)}") from None
    # JSON parsers give no positions, and keep the last of two keys; YAML is a superset here, so its
    # marks serve.
    return data, _parse_yaml(path, text.replace("\t", " "))[1]


def _first_words(error: Exception) -> str:
    """Return the first line of an error, without Python's advice to whoever wrote the program."""
    return (
        "nested too deeply"
        if isinstance(error, RecursionError)
        else re.split("; use sys|\n", str(error))[0]
    )
