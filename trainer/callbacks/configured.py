"""Callbacks that the training config names.

    callbacks:
      - mymodule:LogImages
      - mymodule:Thaw: {at: 3, layers: "stem.*"}

The settings are the arguments of the class, and are checked against their annotations as a task's
settings are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ..config.annotations import is_made_from_fields
from ..config.named_class import find_class
from ..config.validate import arguments_of, build
from ..errors import Origin, origin_of
from ..hooks import Callback


def configured_callbacks(
    values: Sequence[Any], origins: Mapping[str, Origin], *, only_check: bool = False
) -> list[Callback]:
    """Return the callbacks that ``callbacks`` of a training config names, in the same order.

    ``only_check`` makes dataclasses alone: the ``__init__`` of others may do work.
    """
    place = partial(origin_of, origins)
    made: list[Any] = []
    for number, value in enumerate(values):
        for named, settings in ({value: {}} if isinstance(value, str) else value).items():
            key = f"callbacks.{number}.{named}"
            cls = find_class(named, Callback, place(key))
            if only_check and not is_made_from_fields(cls):
                arguments_of(cls, settings or {}, place, f"{key}.")
            else:
                made.append(build(cls, settings or {}, place, f"{key}."))
    return made
