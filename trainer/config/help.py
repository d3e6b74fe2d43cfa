"""The help of a training script: a table of all keys of the training config."""

from __future__ import annotations

import json
import re

from .annotations import annotations_of
from .arguments import FILES
from .train_config import DEFAULTS, GROUPS, TrainConfig


def help_text() -> str:
    """Return a table of all keys of the training config."""
    lines = [
        "usage: trainer train | SCRIPT.py [FILE] [--key value | --key=value | key=value] ...",
        "",
        "Files and switches",
    ]
    lines += [f"  --{name + ' FILE':37} {text}" for name, text in FILES.items()]
    lines.append(f"  --{'print_config':37} print all values and their origins, then exit")

    for key, annotation in annotations_of(TrainConfig).items():
        if key in GROUPS:
            lines += ["", GROUPS[key]]
        default = json.dumps(DEFAULTS[key]) if key in DEFAULTS else "required"
        notes = [getattr(note, "description", None) for note in annotation.__metadata__]
        notes += re.findall(r"Literal(\[.*?\])", str(annotation))
        lines.append(" ".join([f"  --{key:22} {default:14}", *filter(None, notes)]))
    return "\n".join(lines)
