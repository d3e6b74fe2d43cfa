"""Fifty steps at the same global batch: the same losses under every strategy, world size and
accumulation.

docs/curves.md holds the tables; ``benchmarks/curves.py`` makes them, and trains here.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest
from launchers import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from curves import (
    ACCUMULATIONS,
    BOUND,
    FIRST_STEP,
    LAYOUTS,
    REFERENCE,
    STEPS,
    TASKS,
    Curves,
    difference,
    run_layout,
)

QUICK_STEPS = 10
QUICK = [("fsdp", 2), ("zero2", 2)]


@cache
def curves(strategy: str, world: int, steps: int, folder: Path) -> Curves:
    return run_layout(strategy, world, folder / str(steps), steps=steps)


def hold(strategy: str, world: int, steps: int, folder: Path) -> None:
    alone_as, alone_on, alone_accumulation = REFERENCE
    alone = curves(alone_as, alone_on, steps, folder)
    for name in TASKS:
        reference = alone[f"{name}, {alone_accumulation}"]
        assert len(reference["loss"]) == steps and reference["loss"][-1] < reference["loss"][0]
        for accumulation in ACCUMULATIONS:
            curve = curves(strategy, world, steps, folder)[f"{name}, {accumulation}"]
            loss, norm = (difference(curve[key], reference[key]) for key in ("loss", "norm"))
            assert loss[0] <= FIRST_STEP and norm[0] <= FIRST_STEP, (
                name,
                accumulation,
                loss[0],
                norm[0],
            )
            assert max(loss) <= BOUND and max(norm) <= BOUND, (
                name,
                accumulation,
                max(loss),
                max(norm),
            )


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "world"), QUICK)
def test_the_first_steps_are_those_of_one_process(strategy: str, world: int, folder: Path) -> None:
    hold(strategy, world, QUICK_STEPS, folder)


@pytest.mark.slow
@pytest.mark.parametrize(("strategy", "world"), LAYOUTS)
def test_the_curve_is_that_of_one_process(strategy: str, world: int, folder: Path) -> None:
    hold(strategy, world, STEPS, folder)
