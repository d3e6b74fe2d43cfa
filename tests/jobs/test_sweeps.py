"""Many runs from one config have names and folders of their own, and the best of them is named.

| promised | strategies and worlds | tests |
|---|---|---|
| The page's shell loop: six runs, their names on W&B, and the best by compare | one process (nightly) | test_the_shell_loop_of_the_page |
| A folder named by placeholders is the same on all ranks, and found again | DDP on 2; nightly the others | test_a_folder_named_by_placeholders_is_found_again |
| The page's search with optuna, which ends trials early | one process (nightly) | test_the_search_of_the_page |
| What a W&B agent starts is the run of its sweep | one process (nightly) | test_the_command_of_a_wandb_agent |
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

import pytest
import yaml
from doc_pages import examples, write_files
from launchers import BIN, ROOT, command, completed, json_in, run, some_quick
from trackers import inspect, quiet

from trainer.commands.finished_runs import read_run

PAGE = (ROOT / "docs/sweeps.md").read_text()
DIGITS = ["--config", "examples/configs/digits_cnn.yaml", "--task_settings.width=8"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The files of the page, beside the task that it names."""
    monkeypatch.chdir(tmp_path)
    write_files(PAGE)
    shutil.copy(ROOT / "examples/digits_cnn.py", tmp_path)
    shutil.copytree(ROOT / "accel_configs", tmp_path / "accel_configs")
    return tmp_path


def shell(script: str | list[str], folder: Path, **environment: str) -> str:
    """Run a script of the page, or a command, and return what it printed."""
    path = f"{BIN}{os.pathsep}{os.environ['PATH']}"
    words = ["bash", "-e", "-c", script] if isinstance(script, str) else script
    quiet_with = quiet(folder, WANDB_API_KEY="", PATH=path, **environment)
    done = completed(words, folder=folder, environment=quiet_with, timeout=580)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-4000:]
    return done.stdout


def scripts() -> list[str]:
    """Return the shell examples of the page."""
    return [text for language, text in examples(PAGE) if language == "sh"]


def names_on_wandb(folder: Path) -> dict[str, str]:
    """Return the name and the group that W&B's own tool reads from a run's files."""
    [offline] = (folder / "wandb").glob("offline-run-*")
    told = json.loads(inspect("--summary", "--json", str(offline)))
    return {key: told[key] for key in ("name", "project", "run_id")}


@pytest.mark.slow
def test_the_shell_loop_of_the_page(folder: Path) -> None:
    config = folder / "sweep.yaml"
    config.write_text(f"{config.read_text()}trackers: [wandb]\n")
    said = shell(scripts()[0], folder)

    runs = {f"digits-lr{lr}-s{seed}" for lr in (0.001, 0.003) for seed in (0, 1, 2)}
    assert {path.name for path in (folder / "runs").iterdir()} == runs
    for name in ("digits-lr0.001-s0", "digits-lr0.003-s2"):
        output = folder / "runs" / name
        assert json_in(output / "plan.json")["run_name"] == name
        assert yaml.safe_load((output / "config.yaml").read_text())["output_dir"] == f"runs/{name}"
        assert names_on_wandb(output)["name"] == name

    best = {}
    for name in runs:
        curve = read_run(folder / "runs" / name).curve("eval/accuracy")
        best[name] = max(value for value in curve.values() if value is not None)
    assert all(name in said for name in best)
    assert "lr: " in said and "seed: " in said and "strategy:" not in said


@pytest.mark.parametrize("strategy", some_quick("ddp"))
def test_a_folder_named_by_placeholders_is_found_again(strategy: str, tmp_path: Path) -> None:
    words = [
        *DIGITS,
        "--schedule=constant",
        "--warmup_steps=0",
        "--log_every=1",
        "--eval_every=null",
    ]
    words += ["--run_name={experiment}-{strategy}x{world_size}-lr{lr}"]
    template = tmp_path / "{run_name}" / "{task}"
    run([*command("ranks", strategy), *words, "--max_steps=2"], template).ok()
    folder = tmp_path / f"DigitsCNN-{strategy}x2-lr0.003" / "digits_cnn-DigitsCNN"
    plan = json_in(folder / "plan.json")
    assert (plan["strategy"], plan["world_size"]) == (strategy, 2)
    assert plan["run_name"] == f"DigitsCNN-{strategy}x2-lr0.003"

    again = [*command("ranks", strategy), *words, "--max_steps=4", "--resume=auto"]
    assert "resumed from" in run(again, template).ok().out
    assert [row["step"] for row in read_run(folder).rows if "loss" in row] == [1, 2, 3, 4]
    assert [path.name for path in tmp_path.iterdir()] == [f"DigitsCNN-{strategy}x2-lr0.003"]


@pytest.mark.slow
def test_the_search_of_the_page(folder: Path) -> None:
    said = shell([sys.executable, "search.py", "4"], folder)

    summaries = {path.name: json_in(path / "summary.json") for path in (folder / "runs").iterdir()}
    assert set(summaries) == {f"trial-{number}" for number in range(4)}
    ended = {name for name, summary in summaries.items() if summary["stopped_by"] == "SIGTERM"}
    whole = {
        name: summary["best"]["value"] for name, summary in summaries.items() if name not in ended
    }
    found = re.search(r"^best: (trial-\d) (\S+) ", said, re.MULTILINE)
    assert found is not None and len(whole) >= 3
    assert f"{whole[found[1]]:.4f}" == found[2] == f"{max(whole.values()):.4f}"
    for name in ended:
        assert (folder / "runs" / name / "model").is_dir()


@pytest.mark.slow
def test_the_command_of_a_wandb_agent(folder: Path) -> None:
    """W&B's own agent starts it, from the page's YAML, with what a server would choose."""
    sweep = yaml.safe_load((folder / "wandb_sweep.yaml").read_text())
    chosen = {key: parameter["values"][0] for key, parameter in sweep["parameters"].items()}
    chosen |= {"lr": 0.003, "seed": 1}
    worker = str(ROOT / "tests/workers/wandb_agent.py")
    said = shell([sys.executable, worker, "wandb_sweep.yaml", "run7", json.dumps(chosen)], folder)

    output = folder / "runs/digits-w8-lr0.003-s1"
    assert "WANDB_" not in said, "nothing that the agent sets is without effect"
    assert names_on_wandb(output) == {
        "name": "digits-w8-lr0.003-s1",
        "project": "of-the-sweep",
        "run_id": "run7",
    }
    assert json_in(output / "tracking.json") == {"wandb": "run7"}
    again = read_run(output)
    assert again.plan["lr"] == 0.003 and again.plan["seed"] == 1
    assert again.plan["run_name"] == "digits-w8-lr0.003-s1"
