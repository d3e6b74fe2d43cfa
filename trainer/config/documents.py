"""Strict reading of YAML and JSON: duplicate keys, tabs and trailing commas are errors with a line.

A ``Document`` knows the line of each key, so that every later message can name it.
"""

from __future__ import annotations

import functools
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

_MOST_VALUES = 100_000  # of a file; an alias counts as often as it is used
_DEEPEST = 64  # levels of nesting


@dataclass(frozen=True, kw_only=True)
class Document:
    """A parsed file. ``data`` is the root mapping, ``origins`` gives the line of each key path."""

    path: str
    data: dict[str, Any]
    origins: Mapping[Key, Origin] = field(default_factory=dict)

    def origin(self, key: Key) -> Origin:
        """Return the origin of a key: its line, or that of the nearest mapping around it."""
        if key in self.origins:
            return self.origins[key]
        for end in range(len(key) - 1, 0, -1):
            if key[:end] in self.origins:
                return self.origins[key[:end]].named(".".join(key))
        return Origin(self.path).named(".".join(key))

    def at(self, *key: str) -> Sourced[Any] | None:
        """Return the value of ``key`` with its origin; None where the file has no such key."""
        data: Any = self.data
        for name in key:
            if not isinstance(data, dict) or name not in data:
                return None
            data = data[name]
        return Sourced(data, self.origin(key))

    def paths(self, *above: str) -> Iterator[Key]:
        """Yield every key below ``above``, at any depth."""
        found = self.at(*above)
        if found is None or not isinstance(found.value, dict):
            return
        for name in found.value:
            yield (*above, name)
            yield from self.paths(*above, name)


def read_document(path: str | Path, *, what: str = "file") -> Document:
    """Read a ``.yaml``, ``.yml`` or ``.json`` file.

    Args:
        what: the role of the file, for errors.

    Raises:
        ConfigError: missing, empty, not a mapping at the root, not parseable, or with duplicate
            keys.
    """
    name = str(path)
    text = _read_text(name, what)
    if not text.strip():
        raise _wrong(name, f"the {what} is empty")

    parse = _parse_json if name.endswith(".json") else _parse_yaml
    data, lines = parse(name, text)
    if not isinstance(data, dict):
        kind = "nothing" if data is None else f"a {type(data).__name__}"
        raise _wrong(name, f"the root of the {what} must be a mapping, not {kind}")

    origins = {key: Origin(name, line, ".".join(key)) for key, line in lines.items()}
    named_data = {str(key): value for key, value in data.items()}
    return Document(path=name, data=named_data, origins=origins)


def _read_text(name: str, what: str) -> str:
    rule = not_local(name)
    if rule:
        raise _wrong(name, rule)
    try:
        return Path(os.path.expanduser(name)).read_text(encoding="utf-8")
    except FileNotFoundError:
        raise _wrong(name, f"the {what} does not exist") from None
    except (OSError, UnicodeDecodeError) as error:
        raise _wrong(name, f"the {what} cannot be read: {error}") from None


@functools.cache
def read_table(path: Path) -> dict[str, Any]:
    """Read a YAML file of this package, which needs no checks.

    libyaml takes a tenth of the time; it is absent where PyYAML was built without it.
    """
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    table: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    return table


def _wrong(path: str, rule: str, line: int | None = None, key: str = "") -> ConfigError:
    return ConfigError(Problem(origin=Origin(path, line, key), rule=rule))


class _Loader(yaml.SafeLoader):
    """A SafeLoader whose numbers are what they look like.

    YAML 1.1 reads ``1e-3`` as text, ``010`` as 8 and ``1:30`` as 90. Here the first is a number and
    the others are text, which files must not leave in doubt (``_AMBIGUOUS_NUMBER``).
    """


_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
_INT_PATTERN = re.compile(r"^[-+]?(0|[1-9][\d_]*|0b[01_]+|0x[\da-fA-F_]+)$")
_FLOAT_PATTERN = re.compile(
    r"""^[-+]?(
            (\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?  # 1.5, .5e3
            |\d[\d_]*[eE][-+]?\d+  # 1e-3
            |\.(inf|Inf|INF)
        )$
        |^\.(nan|NaN|NAN)$""",
    re.VERBOSE,
)
# What YAML 1.1 reads to the base 8 or 60.
_AMBIGUOUS_NUMBER = re.compile(r"[-+]?(0[\d_]*\d|\d[\d_]*(:[0-5]?\d)+(\.[\d_]*)?)")

_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in pairs if tag not in (_INT, _FLOAT)]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(_INT, _INT_PATTERN, list("-+0123456789"))
_Loader.add_implicit_resolver(_FLOAT, _FLOAT_PATTERN, list("-+.0123456789"))


def parse_scalar(text: str) -> Any:
    """Return the value of a command-line argument, read as YAML would read it in a file."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, ValueError):  # ValueError: looks like a date or a number, and is none
        return text


def _parse_yaml(path: str, text: str) -> tuple[Any, dict[Key, int]]:
    """Return the data of a file and the line of each key."""
    language = "JSON" if path.endswith(".json") else "YAML"
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None, {}
        walk = _Walk(path)
        walk.visit(node, ())
        return loader.construct_document(node), walk.lines

    except ConfigError:
        raise
    except yaml.MarkedYAMLError as error:
        rule = str(error.problem)
        if error.problem_mark is None:
            raise _wrong(path, f"not valid {language}: {rule}") from None
        line = error.problem_mark.line
        rows = text.splitlines()
        if "\t" in rows[min(line, len(rows) - 1)]:
            rule = "a tab: YAML is indented with spaces only"
        raise _wrong(path, f"not valid {language}: {rule}", line + 1) from None
    except RecursionError:
        raise _wrong(path, f"not valid {language}: nested too deeply") from None
    except (yaml.YAMLError, ValueError) as error:  # ValueError: an impossible date or number
        raise _wrong(path, f"not valid {language}: {_first_line(error)}") from None


class _Walk:
    """A walk over the nodes of a YAML file, which notes the line of every key.

    Args:
        path: of the file, for errors.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.lines: dict[Key, int] = {}
        self.visited = 0

    def visit(self, node: yaml.Node, key: Key) -> None:
        """Visit the node of a key, and all below it.

        Raises:
            ConfigError: the key is there twice, aliases repeat each other, or a number is not what
                it looks like.
        """
        self.visited += 1
        if self.visited > _MOST_VALUES:
            rule = (
                f"stands for more than {_MOST_VALUES:,} values; "
                "do its aliases (*name) repeat each other?"
            )
            raise _wrong(self.path, rule)
        if len(key) > _DEEPEST:
            raise _wrong(self.path, "nested too deeply, or an alias that contains itself")

        if isinstance(node, yaml.ScalarNode):
            self._check_number(node, key)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self.visit(item, (*key, str(index)))
        elif isinstance(node, yaml.MappingNode):
            for name_node, value_node in node.value:
                inner_key = (*key, str(name_node.value))
                self._note_line(inner_key, name_node.start_mark.line + 1)
                self.visit(value_node, inner_key)

    def _note_line(self, key: Key, line: int) -> None:
        if key in self.lines:
            rule = f"the key stands twice, first on line {self.lines[key]}; keep one"
            raise _wrong(self.path, rule, line, ".".join(key))
        self.lines[key] = line

    def _check_number(self, node: yaml.ScalarNode, key: Key) -> None:
        """Refuse what other readers of YAML take for another number than it looks like."""
        is_bare = node.style is None
        if not is_bare or not _AMBIGUOUS_NUMBER.fullmatch(node.value):
            return
        base = 60 if ":" in node.value else 8
        rule = (
            f"{node.value}: YAML takes it to the base {base}; "
            f"write a plain number, or '{node.value}' in quotes if it is text"
        )
        raise _wrong(self.path, rule, node.start_mark.line + 1, ".".join(key))


def _parse_json(path: str, text: str) -> tuple[Any, dict[Key, int]]:
    """Return the data of a file and the line of each key."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise _invalid_json(path, text, error) from None
    except RecursionError:
        raise _wrong(path, "not valid JSON: nested too deeply") from None
    except ValueError as error:  # a number of more digits than Python takes
        raise _wrong(path, f"not valid JSON: {_first_line(error)}") from None

    # JSON parsers give no positions, and keep the last of two keys; YAML is a superset here, so its
    # marks serve.
    _, lines = _parse_yaml(path, text.replace("\t", " "))
    return data, lines


def _invalid_json(path: str, text: str, error: json.JSONDecodeError) -> ConfigError:
    """Return the error of a text that is no JSON, which names the two usual mistakes."""
    before = text[: error.pos].rstrip()
    if before.endswith(",") or error.msg.startswith("Illegal trailing comma"):
        line = before.count("\n") + 1
        return _wrong(path, "not valid JSON: a trailing comma: remove it", line)

    row = text.splitlines()[error.lineno - 1].strip()
    if row.startswith(("//", "/*", "#")):
        return _wrong(path, "not valid JSON: a comment, which JSON has not", error.lineno)
    return _wrong(path, f"not valid JSON: {error.msg}", error.lineno)


def _first_line(error: Exception) -> str:
    """Return the first line of an error, without Python's advice to whoever wrote the program."""
    return re.split("; use sys|\n", str(error))[0]
