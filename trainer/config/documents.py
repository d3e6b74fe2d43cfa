"""Strict reading of YAML and JSON, with the line of every key.

The usual parsers report no lines, and accept a key that is set twice. This module walks over
YAML's nodes instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from ..errors import ConfigError, Origin, origin_of
from .paths import not_local

_MOST_BYTES = 2**20  # of a file, for which YAML's parser takes 5 to 10 s
_MOST_VALUES = 100_000  # of a file. Each use of an alias counts
_TAG = "tag:yaml.org,2002:"
_OF_KEYS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge")
_OWN_NUMBERS = {
    "int": re.compile(r"[-+]?(0|[1-9][\d_]*|0b[01]+|0x[\da-fA-F]+)$"),
    "float": re.compile(
        r"""[-+]?(
            (\d[\d_]*\.[\d_]*|\.\d[\d_]*)([eE][-+]?\d+)?  # 1.5, .5e3
            |\d[\d_]*[eE][-+]?\d+  # 1e-3
        )$""",
        re.VERBOSE,
    ),
}


@dataclass(frozen=True, kw_only=True)
class Document:
    """A parsed file: ``data`` is the root mapping, ``origins`` has the line of each dotted key."""

    path: str
    data: dict[str, Any]
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def origin(self, key: str) -> Origin:
        """Return the line of a dotted key, or that of the nearest mapping around the key."""
        return origin_of(self.origins, key, self.path)


def read_document(path: str | Path) -> Document:
    """Read a ``.yaml``, ``.yml`` or ``.json`` file.

    Raises:
        ConfigError: the file is missing, not parseable or no mapping, or a key is set twice.
    """
    name = str(path)
    file = Path(name).expanduser()
    try:
        if file.stat().st_size > _MOST_BYTES or not (file.is_file() or file.is_dir()):
            raise ValueError("is a pipe, a device, or larger than 1 MiB")
        text = file.read_text(encoding="utf-8")
        is_json = name.endswith(".json")
        data, origins = _parse(name, text.replace("\t", " ") if is_json else text)
        if is_json:  # of which YAML's marks have the lines
            data = json.loads(text)
    except ConfigError:
        raise
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        reason = getattr(error, "problem", None) or getattr(error, "strerror", None) or error
        rule = not_local(name) or f"the file cannot be read: {str(reason).splitlines()[0]}"
        if isinstance(error, FileNotFoundError):
            near = get_close_matches(name, map(str, Path(name).parent.glob("[!.]*.*")), 1)
            rule += "".join(f"; did you mean {other!r}?" for other in near)
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else getattr(error, "lineno", None)
        raise Origin(name, line).error(rule) from None

    if not isinstance(data, dict):
        raise Origin(name).error("the file must be a mapping of keys to values")
    return Document(path=name, data=data, origins=origins)


def parse_scalar(text: str) -> Any:
    """Return the value of a text as YAML, and text that YAML would cut or refuse unchanged."""
    try:
        value, _ = _parse("", text)
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    is_bare_text = isinstance(value, str) and not text.startswith(("'", '"'))
    return text if is_bare_text else value


class _Loader(yaml.SafeLoader):
    """A SafeLoader that reads ``1e-3`` as a number, and ``010``, ``1:30`` and dates as text."""


class _Dumper(yaml.SafeDumper):
    """A SafeDumper that quotes all text that a reader takes for a number."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0].endswith(("bool", "null", "merge"))]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _name, _pattern in _OWN_NUMBERS.items():
    for _kind in (_Loader, _Dumper):
        _kind.add_implicit_resolver(_TAG + _name, _pattern, list("-+.0123456789"))


def to_yaml(data: object) -> str:
    """Return data as YAML that ``read_document`` reads back as equal data."""
    text: str = yaml.dump(data, Dumper=_Dumper, sort_keys=False)
    return text


def _parse(path: str, text: str) -> tuple[Any, dict[str, Origin]]:
    """Return the data of a text, and the origin of each dotted key."""
    loader = _Loader(text)
    node = loader.get_single_node()
    origins: dict[str, Origin] = {}
    if node is None:
        return None, origins
    _walk(node, path, "", origins)
    return loader.construct_document(node), origins


def _walk(node: yaml.Node, path: str, above: str, origins: dict[str, Origin]) -> None:
    """Note the origins of all keys below a node. ``above`` is the node's dotted key."""
    is_mapping = isinstance(node, yaml.MappingNode)
    children = [] if isinstance(node, yaml.ScalarNode) else node.value
    own: dict[str, Origin] = {}
    for index, child in enumerate(children):
        place, value = child if is_mapping else (child, child)
        name = place.value if is_mapping else f"{index}"
        key = f"{above}{name}"
        origin = Origin(path, place.start_mark.line + 1, key)
        if is_mapping and place.tag not in _OF_KEYS:
            raise origin.error("a key must be text; put it in quotes")
        if name in own:
            raise origin.error(f"is set twice, first on line {own[name].line}; keep one")
        if len(origins) > _MOST_VALUES:
            raise origin.error("too many values: do aliases (*name) repeat each other?")
        own[name] = origins[key] = origin
        _walk(value, path, f"{key}.", origins)
