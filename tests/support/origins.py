"""Origins and sourced values from the text that messages show."""

from __future__ import annotations

import re
from typing import Any

from trainer.errors import Origin, Sourced


def origin(text: str) -> Origin:
    """Read ``file:line (key)``, of which the line and the key may be absent."""
    found = re.fullmatch(r"(.*?)(?::(\d+))?(?: \((.*)\))?", text)
    assert found is not None
    return Origin(found[1], None if found[2] is None else int(found[2]), found[3] or "")


def sourced(value: Any, text: str) -> Sourced[Any]:
    return Sourced(value, origin(text))
