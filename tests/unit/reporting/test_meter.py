"""Where the time of a run goes, and what the last lines say of it."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest
import torch

from trainer.reporting.meter import Meter, summary_text


def slowly(count: int, seconds: float) -> Any:
    for number in range(count):
        time.sleep(seconds)
        yield number


def test_the_wall_time_is_split_without_rest() -> None:
    meter = Meter(torch.device("cpu"))
    meter.start(0)
    for _ in meter.waiting("data", slowly(3, 0.02)):
        time.sleep(0.01)
        with meter.part("optimizer"):
            time.sleep(0.01)
        meter.step(8)
        meter.count(100)
    with meter.paused("evaluation"):
        time.sleep(0.03)
    of_meter = meter.summary(lambda value: [value, 2 * value], operations=6e6, world_size=2)
    evaluation = {"eval/loss": 0.5, "eval/recall/0": 1.0}
    summary = {"steps": 3, "total_steps": 3, "samples": 24, **of_meter, "evaluation": evaluation}
    seconds = summary["seconds"]
    assert seconds["data"] >= 0.06 and seconds["optimizer"] >= 0.03 and seconds["evaluation"] >= 0.03
    assert seconds["forward and backward"] >= 0.03
    parts = seconds["data"] + seconds["optimizer"] + seconds["forward and backward"]
    assert parts == pytest.approx(seconds["training"], abs=2e-3)
    whole = seconds["training"] + seconds["evaluation"] + seconds["start-up"]
    assert whole == pytest.approx(seconds["wall"], abs=2e-3)
    assert seconds["start-up"] > 0.1, "from the start of the process, with what it imports"
    assert summary["tokens_per_second"] == pytest.approx(300 / seconds["training"], rel=0.02)
    assert "mfu" not in summary, "no peak is known for a CPU"

    lines = summary_text(summary, "runs/x/model").splitlines()
    assert lines[0] == "done: 3 steps, 24 samples, eval/loss 0.5000"
    assert f"(data {seconds['data']:.1f}, forward and backward" in lines[1] and "tokens/s" in lines[1]
    assert len(re.findall(r"\d [MG]iB", lines[2])) == 2 and lines[3] == "model: runs/x/model"


def test_speed_is_that_since_the_last_reading() -> None:
    meter, began = Meter(torch.device("cpu")), time.perf_counter()
    meter.start(0)
    meter.step(100)
    time.sleep(0.02)
    with meter.paused("saving"):
        time.sleep(0.1)
    first = meter.read(steps_left=10)
    # Between the two moments lie 0.02 s of training and 0.1 s of saving; however slow the machine, what is counted
    # stays below all that passed less the saving.
    assert 100 / (time.perf_counter() - began - 0.1) <= first["samples_per_second"] <= 100 / 0.02
    assert "tokens_per_second" not in first
    time.sleep(0.02)
    assert meter.read(steps_left=9)["samples_per_second"] == 0
