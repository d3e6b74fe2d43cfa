"""``trainer compare``: reading runs, the verdict on their curves, the sentence, and the page."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jobs import BIN, ROOT, clean_environment

from trainer.commands.cli import main
from trainer.commands.compare.present import as_page, as_table
from trainer.commands.compare.report import make_report
from trainer.commands.runs import Run, read_run
from trainer.config.fingerprint import SETTINGS
from trainer.errors import ConfigError

PLAN = {"strategy": "ddp", "world_size": 2,
        "mixed_precision": "no", "global_batch_size": 64, "lr": 0.1, "device": "cpu",
        "task": "a:B", "seed": 0, "state_bytes_per_rank": 1600, "accumulation_steps": 1, "fsdp": {}, "deepspeed": {},
        "parameters": 100, "trainable_parameters": 100}  # fmt: skip


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


def verdict(*runs: Run) -> tuple[str, str]:
    [group] = make_report(runs)["groups"]
    return group["verdict"], group["why"]


def test_runs_that_learn_the_same() -> None:
    told = make_report([made("ddp", speed=200), made("zero3", speed=100, memory=500, strategy="zero3", off=1e-7)])
    [group] = told["groups"]
    assert group["verdict"] == "the same curve"
    assert group["against"][0]["first"] == pytest.approx(1e-7, rel=1e-3)
    assert told["settings"]["different"] == {"strategy": {"ddp": "ddp", "zero3": "zero3"}}
    assert told["settings"]["same"].items() >= {"task": "a:B", "seed": 0, "lr": 0.1, "world_size": 2}.items()
    sentence = told["recommendation"]
    assert sentence.startswith("Take ddp: 200 samples/s, 100% ahead of zero3; where memory is short, zero3 needs 500 B")
    close = make_report([made("ddp", speed=101), made("zero3", speed=100, strategy="zero3")])["recommendation"]
    assert "1% ahead of zero3 (so little that a repeat may turn it around)" in close and "repeat" not in sentence
    assert "50% slower" in sentence and "the same, so speed and memory decide" in sentence and "on CPUs" in sentence


@pytest.mark.parametrize(
    ("precision", "off", "expected"),
    [("no", 1e-6, "the same curve"), ("no", 2e-5, "different curves"), ("bf16", 1e-2, "the same curve"),
     ("bf16", 3e-2, "different curves")],
)  # fmt: skip
def test_the_bound_on_the_first_step(precision: str, off: float, expected: str) -> None:
    runs = made("a", mixed_precision=precision), made("b", off=off, mixed_precision=precision)
    assert verdict(*runs)[0] == expected


def test_a_curve_that_drifts_away_is_told() -> None:
    away, lost = made("b"), made("b")
    for row in away.rows[1:5]:
        row["loss"] *= 1.02
    lost.rows[2]["loss"] = None
    found, why = verdict(made("a"), away)
    assert found == "different curves" and why.startswith("apart from a: b (first step 0.0e+00")
    found, why = verdict(made("a"), lost)
    assert found == "different curves" and why.startswith("apart from a: b (first step 0.0e+00, mean not a number)")


def odd_runs() -> list[Run]:
    """Two that agree, and six that are odd, each in its own way."""
    killed, silent, unmeasured, sparse = (made(name) for name in ("killed", "silent", "unmeasured", "sparse"))
    del unmeasured.rows[-1]
    sparse.rows[:] = [dict(row, step=row["step"] + 100) for row in sparse.rows]
    return [
        made("ddp", speed=200),
        made("other_rate_and_a_name_that_is_longer_than_a_telephone_is_wide", lr=0.2, schedule_settings={"gamma": 0.5}),
        made("zero3", strategy="zero3", speed=150),
        replace(killed, rows=killed.rows[:2], summary={}, plan=killed.plan | {"total_steps": 9}),
        replace(silent, rows=[], summary={}),
        replace(unmeasured, plan=unmeasured.plan | {"strategy": "fsdp"}),
        sparse,
        Run(name="failed", path="runs/failed", plan={}, rows=[], error="RuntimeError: the cat sat on rank 1"),
    ]


def test_one_odd_run_leaves_the_others_comparable() -> None:
    told = make_report(odd_runs())
    main, other = told["groups"]
    assert main["runs"] == ["ddp", "zero3", "killed", "unmeasured", "sparse"] and main["verdict"] == "the same curve"
    assert [entry["same"] for entry in main["against"]] == [True, True, True, None]
    assert main["why"].endswith("; sparse logged no step that ddp logged")
    assert other["verdict"] == "one run"
    entries = {entry["name"].split("_")[0]: entry for entry in told["runs"]}
    assert {name: entry["differs"] for name, entry in entries.items() if entry["differs"]} == {
        "other": {"lr": [0.1, 0.2], "schedule_settings.gamma": [None, 0.5]}
    }
    assert {name: entry["state"] for name, entry in entries.items() if entry["state"]} == {
        "killed": "did not end; last logged step 2 of 9",
        "silent": "logged no step",
        "failed": "failed: RuntimeError: the cat sat on rank 1",
    }
    assert told["recommendation"].startswith(
        "Of the 4 that ended with the same settings: take ddp: 200 samples/s, 33% a"
    )
    shown = as_table({**told, "title": ""})
    assert "other settings: lr 0.1 -> 0.2, schedule_settings.gamma none -> 0.5" in shown


@pytest.mark.parametrize("key", SETTINGS)
def test_every_setting_that_decides_the_numbers_keeps_runs_apart(key: str) -> None:
    told = make_report([made("a"), made("b", **{key: "bf16"})])
    assert len(told["groups"]) == 2 and told["runs"][1]["differs"].keys() == {key}
    assert told["recommendation"].startswith("No two runs learn under the same settings")


@pytest.mark.parametrize(("schedule", "groups"), [("constant", 1), ("cosine", 2)])
def test_another_length_matters_to_a_schedule_that_falls_to_the_end(schedule: str, groups: int) -> None:
    runs = [made(str(total), schedule=schedule, total_steps=total) for total in (5, 10)]
    assert len(make_report(runs)["groups"]) == groups


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
    assert told["settings"]["same"]["drop_last"] is False, "what an older run does not say had its default"
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
    told = make_report([made("</script><script>alert(1)</script>")]) | {"title": "<b>&"}
    text = as_page(told)
    assert data_of(text)["runs"][0]["name"].startswith("</script>")
    assert "<title>&lt;b&gt;&amp;</title>" in text and "<script>alert" not in text


def test_a_run_that_was_killed_is_read(tmp_path: Path) -> None:
    """Without summary.json, and with a last row that was not written to its end."""
    folder = written(made("a"), tmp_path / "a")
    (folder / "summary.json").unlink()
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 6, "lo')
    told = make_report([read_run(folder)])
    assert told["runs"][0]["seconds"] == {} and told["runs"][0]["state"] == "did not end; last logged step 5"
    assert told["recommendation"] == "One run alone: there is nothing to choose."


def test_launch_keeps_going_where_a_training_fails(tmp_path: Path) -> None:
    """The task fails on rank 1, so under DDP and not in one process. No script: the config names the task."""
    files = ["accel_configs/ddp.yaml", "accel_configs/single.yaml"]
    config = ["--config", "examples/configs/digits_cnn.yaml", "--task", "tests.failing:FailsOnOneRank"]
    length = ["--max_steps", "4", "--warmup_steps", "1", "--log_every", "1", "--micro_batch_size", "16"]
    words = [str(BIN / "trainer"), "compare", "--launch", *files, *config, *length, "--output", str(tmp_path / "out")]
    done = subprocess.run(words, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"ddp: RuntimeError: the cat sat on rank 1 ({tmp_path}/out/ddp.log)" in done.stderr
    told = data_of((tmp_path / "out" / "compare.html").read_text())
    assert [(run["name"], run["steps"]) for run in told["runs"]] == [("ddp", 0), ("single", 4)]
    assert told["groups"][0]["runs"] == ["single"]


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
    assert (run.name, run.plan["strategy"], run.curve("loss")) == ("theirs", "ddp", {1: 1.0, 2: 0.5})
    assert run.summary == {"seconds": {"wall": 2.0}, "peak_memory_bytes": [5]} and run.evaluation == {}
    with pytest.raises(ConfigError, match="wandb:us/other/abc: W&B: could not find us/other/abc"):
        read_run("wandb:us/other/abc")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: neither an output directory of a run (no plan.json) nor a W&B run"),
        (["nowhere", "--max_steps", "3"], "'--max_steps': belongs to a training"),
        (["a.yaml", "--launch"], "needs --config"),
        (["a.yaml", "--launch", "--config", "t.yaml", "--script", "no.py"], "'no.py': does not exist"),
        (["a.yaml", "--launch", "--config", "t.yaml"], "t.yaml: the training config does not exist"),
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
    assert "a: no step was logged" in capsys.readouterr().err


# Written into the outer page: what sticks out of the page, what is cut off, and which texts lie on each other.
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
    """Headless Chromium, as ``CHROMIUM`` names it: all is drawn, and nothing sticks out, is cut off or overlaps.

    The page lies in a frame, for Chromium's own window cannot be as narrow as a telephone.
    """
    told = make_report(odd_runs()) | {"title": "Eight_runs_" * 5}
    frame = f'<iframe onload="measure(this)" style="width: {width}px; height: 900px" srcdoc="{escape(as_page(told))}">'
    (tmp_path / "page.html").write_text(f"<!doctype html>{MEASURE}<body>{frame}</iframe></body>")
    program = os.environ.get("CHROMIUM", "chromium")
    words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    words += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--dump-dom"]
    words += [f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,1000", (tmp_path / "page.html").as_uri()]
    shown = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout
    [encoded] = re.findall("MEASURED(.*)END</body>", shown)
    found = json.loads(base64.b64decode(encoded))
    assert (found["wide"], found["problems"]) == (width, []) and found["texts"] > 150
    assert found["paths"] == 6 and found["bars"] == 4 * 8
    assert "Of the 4 that ended with the same settings: take ddp" in found["text"]
    assert "Parity of ddp, zero3, killed, unmeasured, sparse: the same curve" in found["text"]
    assert "failed: RuntimeError: the cat sat on rank 1" in found["text"]
