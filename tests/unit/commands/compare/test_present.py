"""``trainer compare``: the table and the page."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from html import escape
from pathlib import Path

import pytest
from comparison_page import data_of
from made_runs import made, odd_runs

from trainer.commands.compare.present import as_page, as_table
from trainer.commands.compare.report import make_report


def test_a_name_cannot_break_out_of_the_page() -> None:
    told = make_report([made("</script><script>alert(1)</script>")]) | {"title": "<b>&"}
    text = as_page(told)
    assert data_of(text)["runs"][0]["name"].startswith("</script>")
    assert "<title>&lt;b&gt;&amp;</title>" in text and "<script>alert" not in text


# Written into the outer page: what sticks out of the page, what is cut off, and which texts lie on
# each other.
MEASURE = """
<script>
function measure(frame) {
  const page = frame.contentDocument, wide = frame.contentWindow.innerWidth, problems = [], texts = [];
  const inside = (a, b) =>
    a.left >= b.left - 1 && a.right <= b.right + 1 && a.top >= b.top - 1 && a.bottom <= b.bottom + 1;
  const shared = (a, b, low, high) => Math.min(a[high], b[high]) - Math.max(a[low], b[low]);
  for (const element of page.body.querySelectorAll("*")) {
    const box = element.getBoundingClientRect();
    if (box.width && (box.left < 0 || box.right > wide)) problems.push("sticks out: " + element.outerHTML.slice(0, 80));
    for (const node of element.childNodes) {
      if (node.nodeType !== 3 || !node.data.trim() || element.closest("script, style")) continue;
      const range = page.createRange(); range.selectNodeContents(node);
      for (const place of range.getClientRects()) {
        const around = element.closest("svg, section, h1").getBoundingClientRect();
        if (!inside(place, around)) problems.push("is cut: " + node.data);
        const over = texts.find(([other, there]) => other !== node
          && shared(place, there, "left", "right") > 1 && shared(place, there, "top", "bottom") > 3);
        if (over) problems.push("on each other: " + node.data + " | " + over[0].data);
        texts.push([node, place]);
      }
    }
  }
  const count = selector => page.querySelectorAll(selector).length;
  const drawn = {paths: count("path"), bars: count(".bar"), texts: texts.length};
  const report = {wide, problems, ...drawn, text: page.body.innerText};
  document.body.textContent = "MEASURED" + btoa(unescape(encodeURIComponent(JSON.stringify(report)))) + "END";
}
</script>
"""


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_in_a_browser(width: int, tmp_path: Path) -> None:
    """Headless Chromium, as ``CHROMIUM`` names it: all is drawn, and nothing sticks out, is cut off
    or overlaps.

    The page lies in a frame, for Chromium's own window cannot be as narrow as a telephone.
    """
    told = make_report(odd_runs()) | {"title": "Eight_runs_" * 5}
    frame = f'<iframe onload="measure(this)" style="width: {width}px; height: 900px" srcdoc="{escape(as_page(told))}">'
    (tmp_path / "page.html").write_text(f"<!doctype html>{MEASURE}<body>{frame}</iframe></body>")
    program = os.environ.get("CHROMIUM", "chromium")
    words = [
        program,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
        "--no-first-run",
    ]
    words += [
        "--disable-background-networking",
        "--disable-component-update",
        "--disable-sync",
        "--dump-dom",
    ]
    words += [
        f"--user-data-dir={tmp_path / 'profile'}",
        "--window-size=1400,1000",
        (tmp_path / "page.html").as_uri(),
    ]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    [encoded] = re.findall("MEASURED(.*)END</body>", shown)
    found = json.loads(base64.b64decode(encoded))
    assert (found["wide"], found["problems"]) == (width, []) and found["texts"] > 150
    assert found["paths"] == 6 and found["bars"] == 3 * 7
    assert "beside ddp, zero3: the same curve" in found["text"]


def test_a_terminal_gets_no_escape_sequence_of_a_name() -> None:
    report = make_report([made("a\x1b[31mred\x07 ü\u202e"), made("b")])
    table = as_table(report)
    assert "a\\x1b[31mred\\x07 ü\\u202e" in table
    assert not {"\x1b", "\x07", "\u202e"} & set(table)
