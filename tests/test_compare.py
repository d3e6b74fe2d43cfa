"""``trainer compare``: reading runs, the verdict on their curves, the sentence, and the page."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trainer.cli import main
from trainer.commands.compare import page
from trainer.commands.comparing import report
from trainer.commands.runs import Run, read_run
from trainer.errors import ConfigError

PLAN = {"strategy": "ddp", "world_size": 2,
        "mixed_precision": "no", "global_batch_size": 64, "lr": 0.1, "device": "cpu",
        "task": "a:B", "seed": 0, "state_bytes_per_rank": 1600, "sent_bytes_per_step": 400}  # fmt: skip


def made(name: str, *, speed: float = 100.0, memory: int = 1000, off: float = 0.0, **plan: object) -> Run:
    rows: list[dict[str, Any]] = [
        {"step": step, "samples": 64 * step, "seconds": 0.1 * step, "loss": (2.0 - 0.1 * step) * (1 + off),
         "samples_per_second": speed if step > 1 else speed / 9}
        for step in range(1, 6)
    ]  # fmt: skip
    rows.append({"step": 5, "epoch": 1.0, "samples": 320, "eval/loss": 1.4})
    summary = {"peak_memory_bytes": [memory, memory - 1], "seconds": {"training": 0.5}}
    return Run(name=name, path=f"runs/{name}", plan=PLAN | plan, rows=rows, summary=summary)


def written(run: Run, folder: Path) -> Path:
    """The run as our trainer leaves it."""
    folder.mkdir()
    plan = {key: value for key, value in run.plan.items() if key not in ("task", "seed")}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "config.yaml").write_text(f"task: {run.plan['task']}\nseed: {run.plan['seed']}\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in run.rows))
    (folder / "summary.json").write_text(json.dumps(run.summary))
    return folder


def test_runs_that_learn_the_same() -> None:
    told = report([made("ddp", speed=200), made("zero3", speed=100, memory=500, strategy="zero3", off=1e-7)])
    assert told["parity"]["verdict"] == "the same curve"
    assert told["parity"]["against"][0]["first"] == pytest.approx(1e-7, rel=1e-3)
    assert told["differences"] == {"strategy": ["ddp", "zero3"]}
    sentence = told["recommendation"]
    assert sentence.startswith("Take ddp: 200 samples/s, 100% ahead of zero3; where memory is short, zero3 needs 500 B")
    close = report([made("ddp", speed=101), made("zero3", speed=100, strategy="zero3")])["recommendation"]
    assert "1% ahead of zero3 (so little that a repeat may turn it around)" in close and "repeat" not in sentence
    assert "50% slower" in sentence and "the same, so speed and memory decide" in sentence and "on CPUs" in sentence


@pytest.mark.parametrize(("off", "verdict"), [(1e-6, "the same curve"), (2e-5, "different curves")])
def test_the_bound_on_the_first_step(off: float, verdict: str) -> None:
    assert report([made("a"), made("b", off=off)])["parity"]["verdict"] == verdict


def test_a_curve_that_drifts_away_is_told() -> None:
    away = made("b")
    for row in away.rows[1:5]:
        row["loss"] *= 1.02
    parity = report([made("a"), away])["parity"]
    assert parity["verdict"] == "different curves" and parity["why"].startswith("apart from a: b (first step 0.0e+00")


def test_other_mathematics_is_not_compared() -> None:
    parity = report([made("a"), made("b", lr=0.2, seed=1)])["parity"]
    assert (parity["verdict"], parity["why"]) == ("not comparable", "the runs differ in seed, lr")


def test_three_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [written(made("x", speed=speed), tmp_path / name) for name, speed in (("ddp", 90.0), ("fsdp", 100.0))]
    assert main(["compare", *map(str, folders), "--json", "c.json", "--title", "A & B"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"ddp +ddp +2 +90 +1000 B +1.6 KiB +400 B +1.5000 +1.4000", out) and "Take fsdp" in out
    told = json.loads((tmp_path / "c.json").read_text())
    assert [run["name"] for run in told["runs"]] == ["ddp", "fsdp"]
    assert told["runs"][0]["sent_bytes"] == 5 * 400 and told["runs"][0]["samples_per_second"] == 90.0
    assert told["runs"][0]["curves"]["eval"] == [[5, 320, 0.5, 1.4]]
    assert told == data_of((tmp_path / "compare.html").read_text())


class Page(HTMLParser):
    """Collects what a page would load, and its data."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.data = ""
        self.inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found: Mapping[str, str | None] = dict(attrs)
        self.loads += [str(value) for key, value in attrs if key in ("src", "href", "srcset", "action")]
        self.inside = found.get("type") == "application/json"

    def handle_data(self, data: str) -> None:
        self.data += data if self.inside else ""

    def handle_endtag(self, tag: str) -> None:
        self.inside = False


def data_of(text: str) -> dict[str, Any]:
    parser = Page()
    parser.feed(text)
    assert parser.loads == [] and "@import" not in text and "url(" not in text, "the page needs nothing else"
    return dict(json.loads(parser.data))


def test_a_name_cannot_break_out_of_the_page() -> None:
    told = report([made("</script><script>alert(1)</script>")]) | {"title": "<b>&"}
    text = page(told)
    assert data_of(text)["runs"][0]["name"].startswith("</script>")
    assert "<title>&lt;b&gt;&amp;</title>" in text and "<script>alert" not in text


def test_a_run_that_did_not_end_is_read(tmp_path: Path) -> None:
    folder = written(made("a"), tmp_path / "a")
    (folder / "summary.json").unlink()
    told = report([read_run(folder)])
    assert told["runs"][0]["seconds"] == {} and told["recommendation"] == "One run alone: there is nothing to choose."


def test_a_run_on_wandb_is_read_by_its_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """The part of the API that is used, without a server: ``Api.run``, ``config``, ``scan_history``, ``summary``."""
    import wandb

    class Api:
        def __init__(self, timeout: int) -> None:
            """Knows one run."""

        def run(self, path: str) -> Any:
            if path != "us/project/abc":
                raise wandb.errors.CommError(f"could not find {path}")
            rows = [{"step": s, "samples": 8 * s, "train/loss": 1 / s, "eval/loss": None} for s in (1, 2)]
            told = {"summary/peak_memory_bytes": 5, "summary/seconds/wall": 2.0}
            return SimpleNamespace(name="theirs", config=PLAN, summary=told, scan_history=lambda: rows)

    monkeypatch.setattr(wandb, "Api", Api)
    run = read_run("wandb:us/project/abc")
    assert (run.name, run.plan["strategy"], run.curve("loss")) == ("theirs", "ddp", [(1, 1.0), (2, 0.5)])
    assert run.summary == {"seconds": {"wall": 2.0}, "peak_memory_bytes": [5]} and run.evaluation == {}
    with pytest.raises(ConfigError, match="wandb:us/other/abc: W&B: could not find us/other/abc"):
        read_run("wandb:us/other/abc")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: neither an output directory of a run (no plan.json) nor a W&B run"),
        (["nowhere", "--max_steps", "3"], "'--max_steps': belongs to a training"),
        (["a.yaml", "--launch"], "needs --config"),
        (["x/a.yaml", "y/a.yaml", "--launch", "--config", "t.yaml"], "two launch files have the same name"),
    ],
)
def test_mistakes(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *words]) == 2
    assert said in capsys.readouterr().err


def test_a_run_without_steps_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = written(made("a"), tmp_path / "a")
    (folder / "metrics.jsonl").unlink()
    assert main(["compare", str(folder)]) == 2
    assert "holds no logged step" in capsys.readouterr().err


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 400])
def test_the_page_in_a_browser(width: int, tmp_path: Path) -> None:
    """Headless Chromium, as ``CHROMIUM`` names it: every curve and bar is drawn, and nothing sticks out sideways."""
    told = report([made("ddp"), made("zero3", speed=50, strategy="zero3")]) | {"title": "Two runs"}
    file = tmp_path / "page.html"
    wide = "<script>document.title = document.documentElement.scrollWidth + ' of ' + innerWidth</script></html>"
    file.write_text(page(told).replace("</html>", wide))
    program = os.environ.get("CHROMIUM", "chromium")
    words = [program, "--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},900", "--dump-dom"]
    shown = subprocess.run([*words, file.as_uri()], capture_output=True, text=True, timeout=60, check=True).stdout
    assert shown.count("<path ") == 2 and shown.count('class="bar"') == 4 * 2
    assert "Take ddp" in shown and "Parity: the same curve." in shown
    [(needed, there)] = re.findall(r"<title>(\d+) of (\d+)</title>", shown.split("</head>")[0]) or re.findall(
        r"<title>(\d+) of (\d+)</title>", shown
    )
    assert int(needed) <= int(there)
