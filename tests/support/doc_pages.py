"""The examples on the pages for people."""

from __future__ import annotations

import re
from pathlib import Path

FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: str) -> list[tuple[str, str]]:
    """Language and text of the examples on a page."""
    return FENCE.findall(page)


def write_files(page: str) -> None:
    """Write the examples that begin with a file's name, such as ``# line.py``, into the current
    folder.
    """
    for _, text in examples(page):
        if name := re.match(r"# (\w+\.(?:py|yaml))\n", text):
            Path(name[1]).write_text(text)
