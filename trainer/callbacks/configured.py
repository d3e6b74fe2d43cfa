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
from ..config.validate import Validator
from ..errors import ConfigError, Origin, origin_of
from ..hooks import Callback


def configured_callbacks(
    values: Sequence[Any], origins: Mapping[str, Origin], *, only_check: bool = False
) -> list[Callback]:
    """Return the callbacks that ``callbacks`` of a training config names, in the same order.

    ``only_check`` makes dataclasses alone: the ``__init__`` of others may do work.
    """
    check = Validator(partial(origin_of, origins))
    made: list[Any] = []
    for number, value in enumerate(values):
        for named, settings in ({value: {}} if isinstance(value, str) else value).items():
            key = f"callbacks.{number}.{named}"
            try:
                cls = find_class(named, Callback, check.origin(key))
            except ConfigError as error:
                check.problems += error.problems
                continue
            if only_check and not is_made_from_fields(cls):
                check.settings(cls, settings or {}, f"{key}.")
            else:
                made.append(check.build(cls, settings or {}, f"{key}."))
    check.end()
    return made
