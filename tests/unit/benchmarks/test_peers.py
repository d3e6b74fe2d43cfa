"""Benchmarks beside the peers: what makes a run valid, and the page of the results."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from launchers import ROOT, clean_environment, json_in

from benchmarks.peers import page
from benchmarks.peers.judge import control_problem, ratio
from benchmarks.peers.work import Work
from trainer.optim.learning_rate import lr_factor


def work(**settings: Any) -> Work:
    defaults = {
        "model": "mlp",
        "strategy": "single",
        "world": 1,
        "batch": 8,
        "warm_up": 10,
        "block": 5,
        "rounds": 8,
    }
    return Work(**{**defaults, "folder": "none", **settings})


def test_ratio_is_the_median_of_the_rounds_with_its_interval() -> None:
    reference = [1.0, 2.0, 4.0, 8.0, 1.0]  # what else the machine does meets both
    seconds = [1.1, 2.2, 4.8, 8.8, 1.3]  # 1.1, 1.1, 1.2, 1.1, 1.3 times
    middle, low, high = ratio(seconds, reference)
    assert middle == pytest.approx(1.1) and low == pytest.approx(1.1) and high == pytest.approx(1.3)
    assert ratio(seconds, reference) == (middle, low, high)
    assert ratio(reference, reference) == (1.0, 1.0, 1.0)


def test_reference_far_from_itself_makes_the_run_invalid() -> None:
    assert control_problem("by hand", 1.029) == control_problem("by hand", 0.971) == ""
    assert "by hand is at 0.960 of itself" in control_problem("by hand", 0.96)
    assert control_problem("by hand", 1.04)


def test_schedule_of_the_work_is_the_one_of_the_config() -> None:
    own = work()
    same = lr_factor("cosine", {}, warmup_steps=10, total_steps=own.steps, final_ratio=0.1)
    assert [own.factor(step) for step in range(own.steps)] == pytest.approx(
        [same(step) for step in range(own.steps)]
    )


def test_page_is_what_the_results_make_of_it() -> None:
    text = page.PAGE.read_text()
    assert page.page(text, page.RESULTS) == text, "run: python -m benchmarks.peers.page"


@pytest.mark.slow
def test_command_measures_a_table(tmp_path: Path) -> None:
    chosen = ["--contenders", "samecurve", "bare Accelerate", "--rounds", "2", "--block", "3"]
    subprocess.run(
        [sys.executable, "-m", "benchmarks.peers", "step", *chosen, "--results", str(tmp_path)],
        cwd=ROOT,
        env=clean_environment(),
        timeout=300,
        check=False,  # on a busy machine the reference is far from itself
    )
    found = json_in(tmp_path / "step.json")
    names = ["by hand", "samecurve", "bare Accelerate", "by hand again"]
    assert [one["name"] for one in found["contenders"]] == names
    assert all(one["apart"] == 0 and one["ms"] > 0 for one in found["contenders"])
    assert not [problem for problem in found["problems"] if "other work" in problem]
