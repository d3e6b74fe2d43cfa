"""The picture of the README: each run has a curve and a bar."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.picture import COLORS, main


def test_the_picture_has_a_curve_and_a_bar_for_each_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / f"run{number}" for number in range(len(COLORS))]
    for number, folder in enumerate(folders):
        folder.mkdir()
        plan = {"strategy": f"s{number}", "state_bytes_per_rank": 2**20 * (number + 1)}
        (folder / "plan.json").write_text(json.dumps(plan))
        rows = [{"step": step, "loss": 3.0 / step} for step in range(1, 9)]
        (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, [*rows, {"step": 8}])))
    target = tmp_path / "picture.svg"
    monkeypatch.setattr("sys.argv", ["picture", *map(str, folders), "--to", str(target)])
    main()
    root = ElementTree.parse(target).getroot()
    names = [element.tag.rpartition("}")[2] for element in root]
    assert names.count("polyline") == len(COLORS) and names.count("rect") == len(COLORS) + 1
    assert "s4" in target.read_text() and "at most 0e+00 apart" in target.read_text()
