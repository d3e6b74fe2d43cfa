"""What the engines run with on GPUs where the launch file says nothing."""

from __future__ import annotations

from typing import Any

import pytest
from plans import CPU, FOUR_GPUS, launched, plan, request

from trainer.launching.details import details
from trainer.launching.gpu_defaults import default_rows, overlapped


@pytest.mark.parametrize(("stage", "expected"), [(1, True), (2, True), (3, None)])
def test_stages_1_and_2_exchange_while_the_backward_pass_runs(stage: int, expected: Any) -> None:
    asks = request(f"zero{stage}")
    made = plan(asks, launcher=launched(4), machine=FOUR_GPUS)
    assert made.deepspeed["zero_optimization"].get("overlap_comm") is expected
    shown = dict(details(made.as_dict()))
    assert ("overlap_comm=true" in shown.get("ZeRO", "")) == bool(expected), "the banner says it"
    assert "overlap_comm" not in asks.deepspeed["zero_optimization"], "the request stays as it was"


def test_a_rehearsal_and_late_exchanges_stay_as_they_are() -> None:
    for machine, settings in ((CPU, {}), (FOUR_GPUS, {"find_unused_parameters": True})):
        made = plan(request("zero2"), launcher=launched(4), machine=machine, **settings)
        assert made.deepspeed == {"zero_optimization": {"stage": 2}}
    assert plan(request("ddp"), launcher=launched(4), machine=FOUR_GPUS).deepspeed == {}


def test_what_the_file_says_holds() -> None:
    written = {"zero_optimization": {"stage": 2, "overlap_comm": False}}
    assert overlapped(written) == written
    made = plan(request("zero2", deepspeed=written), launcher=launched(4), machine=FOUR_GPUS)
    assert made.deepspeed == written


def test_what_a_gpu_adds_is_a_row_of_check() -> None:
    [(name, text)] = default_rows({"zero_optimization": {"stage": 2}})
    assert name == "on GPUs"
    assert text.startswith("zero_optimization.overlap_comm=true (samecurve's default")
    for settings in ({"stage": 3}, {"stage": 1, "overlap_comm": False}):
        assert default_rows({"zero_optimization": settings}) == []
    assert default_rows({}) == []
