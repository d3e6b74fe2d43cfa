"""The page of ``trainer compare``, and the data that it holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """Collects what a page would load, and its data."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.data = ""
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found: Mapping[str, str | None] = dict(attrs)
        self.loads += [
            str(value) for key, value in attrs if key in ("src", "href", "srcset", "action")
        ]
        self.inside = found.get("type") == "application/json"

    def handle_data(self, data: str) -> None:
        self.data += data if self.inside else ""

    def handle_endtag(self, tag: str) -> None:
        self.inside = False


def data_of(text: str) -> dict[str, Any]:
    parser = Page()
    parser.feed(text)
    assert parser.loads == [] and "@import" not in text and "url(" not in text, (
        "the page needs nothing else"
    )
    return dict(json.loads(parser.data))
