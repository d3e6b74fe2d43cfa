"""The key ``unfreeze``: layers that are frozen at first, and trained from some step on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from .interval import Every
from .validate import Validator

Entry = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Unfreeze:
    """One entry of ``unfreeze``. Without ``at`` its layers stay frozen until ``run.unfreeze``."""

    layers: Annotated[
        str | list[str], Field(description="names of modules or parameters, such as stem.*")
    ]
    at: Annotated[
        Every | None,
        Field(description="the step, or '2 epochs', after which they are trained"),
    ] = None
    lr: Annotated[
        float | None, Field(description="their learning rate; else the config's", gt=0)
    ] = None

    @property
    def patterns(self) -> list[str]:
        return [self.layers] if isinstance(self.layers, str) else list(self.layers)


def entries_of(value: Entry | list[Entry] | None) -> list[tuple[tuple[str, ...], Entry]]:
    """Return the entries of the key ``unfreeze``, each with its place below the key."""
    if value is None:
        return []
    if isinstance(value, Mapping):
        return [((), dict(value))]
    return [((str(number),), entry) for number, entry in enumerate(value)]


def check_unfreeze(
    check: Validator, value: Entry | list[Entry] | None
) -> list[tuple[tuple[str, ...], Unfreeze]]:
    """Record what is wrong with the entries of ``unfreeze``; return those that are right."""
    right = []
    for place, entry in entries_of(value):
        key = ("unfreeze", *place)
        settings = check.build(Unfreeze, entry, key)
        if settings is None:
            continue
        if not all(settings.patterns) or not settings.patterns:
            check.record((*key, "layers"), "names no layer", settings.layers)
            continue
        right.append((key, settings))
    return right


def read_unfreeze(value: Entry | list[Entry] | None) -> list[Unfreeze]:
    """Return the entries of a config, which has checked them."""
    return [Unfreeze(**entry) for _, entry in entries_of(value)]
