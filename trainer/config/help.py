"""The help of a training script and of the commands: a table of all keys."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, NoReturn

from .annotations import annotations_of, defaults_of
from .train_config import GROUPS


def print_help(about: str, cls: Callable[..., Any]) -> NoReturn:
    """Print a text, a line for each key of a dataclass, and the headlines of ``GROUPS``. Exit."""
    print(about)
    defaults = defaults_of(cls)
    for key, annotation in annotations_of(cls).items():
        if key in GROUPS:
            print(f"\n{GROUPS[key]}")
        default = json.dumps(defaults[key]) if key in defaults else "required"
        notes = [note for note in annotation.__metadata__ if isinstance(note, str)]
        notes += re.findall(r"Literal(\[.*?\])", str(annotation))
        print(f"  --{key:22} {default:14}", *notes)
    raise SystemExit(0)
