"""The page of runs: what plotly is asked to draw, and a file that holds no foreign code."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import made, odd_runs, written

from trainer.commands.cli import main
from trainer.commands.finished_runs import Run
from trainer.commands.page import write_page


@dataclass
class Page:
    """A page, with the arguments of plotly's call."""

    html: str
    traces: list[dict[str, Any]]
    layout: dict[str, Any]
    config: dict[str, Any]

    def panel(self, title: str) -> dict[str, dict[int, float]]:
        """The curves of a panel by the name of the run."""
        row = [note["text"] for note in self.layout["annotations"]].index(title) + 1
        axis = "y" if row == 1 else f"y{row}"
        return {trace["name"]: points(trace) for trace in self.traces if trace["yaxis"] == axis}


def points(trace: dict[str, Any]) -> dict[int, float]:
    values = (np.nan if value is None else value for value in trace["y"])
    return dict(zip(trace["x"], values, strict=True))


def page_of(runs: list[Run], folder: Path, text: str = "") -> Page:
    file = folder / "page.html"
    write_page(file, text, runs)
    html = file.read_text(encoding="utf-8")
    place = html.index("Plotly.newPlot(") + len("Plotly.newPlot(")
    arguments = []
    for _ in range(4):
        place += len(html[place:]) - len(html[place:].lstrip(" ,\n"))
        value, place = json.JSONDecoder().raw_decode(html, place)
        arguments.append(value)
    return Page(html, *arguments[1:])


def test_each_run_that_logged_a_step_has_a_curve_and_its_difference(tmp_path: Path) -> None:
    runs = odd_runs()
    runs.insert(0, runs.pop(4))
    silent, _, _, zero3, killed, *_ = runs
    zero3.rows[1]["loss"] *= 1.5
    zero3.rows[2]["loss"] = None  # it was not finite
    killed.rows[:0] = [{**killed.rows[1], "loss": 9.0}]  # as if resumed: a step twice
    page = page_of(runs, tmp_path)
    loss = page.panel("loss")
    assert not silent.rows and list(loss) == [run.name for run in runs[1:]]
    for run in runs[1:]:
        assert loss[run.name] == pytest.approx(run.curve("loss"), nan_ok=True)
    gaps = page.panel("loss: relative difference to the first run")
    assert gaps["zero3"] == pytest.approx({1: 0, 2: 0.5, 3: np.nan, 4: 0, 5: 0}, nan_ok=True)
    assert "sparse" not in gaps, "it shares no step with the first run"
    assert page.layout["yaxis2"]["type"] == "log"


def test_names_are_text_and_nothing_is_sent(tmp_path: Path) -> None:
    wicked = "</script><script>alert(1)</script>"
    page = page_of([made(wicked), made("\udcff")], tmp_path, f"a table with {wicked}")
    assert page.html.count("alert(1)") == 1 + sum(t["name"] != "\\udcff" for t in page.traces)
    assert "<script>alert" not in page.html and "a table with &lt;/script" in page.html
    assert {trace["name"] for trace in page.traces} == {
        "&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;",
        "\\udcff",
    }
    assert page.config["showSendToCloud"] is False
    assert "src=" not in page.html.partition("<script>")[0] and "default-src 'none'" in page.html


def test_the_command_writes_the_page_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [str(written(made("x"), tmp_path / name)) for name in ("a", "b")]
    file = tmp_path / "page.html"
    assert main(["compare", *folders, "--page", str(file)]) == 0
    assert f"<pre>{capsys.readouterr().out.strip()}</pre>" in file.read_text()
    assert main(["compare", *folders, "--page", str(tmp_path / "none/page.html")]) == 2
    assert "No such file or directory: '" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "plotly.subplots", None)
    assert main(["compare", *folders, "--page", str(file)]) == 2
    assert "needs plotly: pip install -c constraints.txt -e '.[page]'" in capsys.readouterr().err
