"""A training config as YAML that reads back as an equal one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import yaml

from ..text import hidden
from .documents import Key
from .no_effect import unused_by_optimizer
from .train_config import TrainConfig


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes all text that does not begin with a letter.

    Our reader takes ``1e-3`` for a number, PyYAML does not.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, data: str) -> yaml.ScalarNode:
        is_plain = data.isprintable() and data[:1].isalpha()
        style = None if is_plain else '"'
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=style)


_Dumper.add_representer(str, _Dumper.text)


def to_yaml(
    config: TrainConfig,
    comment: Callable[[Key], str] = lambda key: "",
    *,
    without: Collection[str] = (),
) -> str:
    """Write the resolved config, without keys that its optimizer does not use; secrets are hidden.

    Args:
        comment: returns the comment behind the value of a key.
        without: keys that are left out as well.
    """
    left_out = {*unused_by_optimizer(config.optimizer), *without}
    settings = hidden({key: value for key, value in vars(config).items() if key not in left_out})

    rows = list(_rows(settings))
    width = min(60, max(len(row) for _, row in rows))

    lines = []
    for key, row in rows:
        text = comment(key) if key else ""
        lines.append(f"{row:{width}}  # {text}\n" if text else f"{row}\n")
    return "".join(lines)


def _rows(values: Mapping[str, Any], prefix: Key = ()) -> Iterator[tuple[Key, str]]:
    """Yield the lines of a YAML file, each with the key whose value it shows.

    The key is () where the value follows on the lines below.
    """
    indent = "  " * len(prefix)
    for name, value in values.items():
        key = (*prefix, name)
        start = f"{indent}{_dump(name)}:"
        if isinstance(value, dict) and value:
            yield (), start
            yield from _rows(value, key)
        else:
            yield key, f"{start} {_dump(value)}"


def _dump(value: object) -> str:
    """Return a value as YAML on one line."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, width=sys.maxsize, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")
