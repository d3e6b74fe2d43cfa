"""The help of a training script and of the commands: a table of all keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from .annotations import annotations_of, defaults_of
from .train_config import GROUPS


def print_help(about: str, cls: Callable[..., Any]) -> NoReturn:
    """Print a text and a line for each key of a dataclass, and exit."""
    print(about, *_rows_of(cls), sep="\n")
    raise SystemExit(0)


def _rows_of(cls: Callable[..., Any]) -> Iterator[str]:
    """Yield a line for each setting of a dataclass, and the headlines of ``GROUPS``."""
    defaults = defaults_of(cls)
    for key, annotation in annotations_of(cls).items():
        if key in GROUPS:
            yield f"\n{GROUPS[key]}"
        default = json.dumps(defaults[key]) if key in defaults else "required"
        notes = [note for note in annotation.__metadata__ if isinstance(note, str)]
        notes += re.findall(r"Literal(\[.*?\])", str(annotation))
        yield " ".join([f"  --{key:22} {default:14}", *notes])
