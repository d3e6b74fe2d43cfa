"""The examples on the pages for people."""

from __future__ import annotations

import re
from pathlib import Path

from launchers import ROOT

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


SECTION = "## What waits for the device in a step\n"
PLACE = re.compile(r"`([\w/]+\.py: \w+)`")


def places_that_wait() -> set[str]:
    """Return the places of the page at which the host waits for a device."""
    page = (ROOT / "docs/gpu.md").read_text()
    return set(PLACE.findall(page.split(SECTION)[1].split("\n## ")[0]))
