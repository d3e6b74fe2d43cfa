"""The examples on the pages for people."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

from launchers import ROOT

API = (ROOT / "docs" / "api.md").read_text()
MAKE_API = SimpleNamespace(**runpy.run_path(str(ROOT / "docs" / "make_api.py")))
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def examples(page: str) -> Iterator[tuple[str, str]]:
    """Language and text of the examples on a page, without what is generated."""
    yield from FENCE.findall(MAKE_API.BLOCK.sub("", page))


def write_files(page: str) -> None:
    """Write the examples that begin with a file's name, such as ``# line.py``, into the current
    folder.
    """
    for _, text in examples(page):
        if name := re.match(r"# (\w+\.(?:py|yaml))\n", text):
            Path(name[1]).write_text(text)
