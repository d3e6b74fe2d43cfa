"""A training config as YAML that reads back as an equal one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import yaml

from ..text import hidden
from .documents import Key
from .train_config import TrainConfig, without_effect


class _Dumper(yaml.SafeDumper):
    """A dumper that quotes all text without a letter in front: ``1e-3`` is a number to our reader,
    not to PyYAML.
    """

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def text(self, data: str) -> yaml.ScalarNode:
        plain = data.isprintable() and data[:1].isalpha()
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=None if plain else '"')


_Dumper.add_representer(str, _Dumper.text)


def to_yaml(
    config: TrainConfig,
    comment: Callable[[Key], str] = lambda key: "",
    *,
    without: Collection[str] = (),
) -> str:
    """Write the resolved config; keys without effect on its optimizer are left out, secrets are
    hidden.

    Args:
        comment: what stands behind the value of a key.
        without: keys that are left out as well.
    """
    idle = {*without_effect(config.optimizer), *without}
    settings = hidden({key: value for key, value in vars(config).items() if key not in idle})
    rows = [(row, comment(key) if key else "") for key, row in _rows(settings)]
    width = min(60, max(len(row) for row, _ in rows))
    return "".join(f"{row:{width}}  # {said}\n" if said else f"{row}\n" for row, said in rows)


def _rows(values: Mapping[str, Any], prefix: Key = ()) -> Iterator[tuple[Key, str]]:
    """Yield the lines of a YAML file, each with the key whose value it shows, () where that follows
    below.
    """
    for name, value in values.items():
        key, start = (*prefix, name), f"{'  ' * len(prefix)}{_dump(name)}:"
        if isinstance(value, dict) and value:
            yield (), start
            yield from _rows(value, key)
        else:
            yield key, f"{start} {_dump(value)}"


def _dump(value: object) -> str:
    text: str = yaml.dump(
        value, Dumper=_Dumper, default_flow_style=True, width=sys.maxsize, allow_unicode=True
    )
    return text.removesuffix("\n").removesuffix("\n...")
