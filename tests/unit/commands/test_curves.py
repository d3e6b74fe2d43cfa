"""The rule that decides whether two runs have the same curves."""

from __future__ import annotations

import pytest
from judged_curves import BY_RANK, FIRST, KINK, LOST, NUDGED, REFERENCE, STEADY, curve

from trainer.commands.curves import EXACT, LOW, Gaps, bounds_of, gaps_of, judge
from trainer.commands.finished_runs import Run


def gaps(run: Run) -> Gaps:
    return {key: gaps_of(run, REFERENCE, key) for key in ("loss", "grad_norm")}


@pytest.mark.parametrize(
    ("run", "nudged", "expected"),
    [
        (curve("ddp", *[5e-6] * 8), [], "same"),
        (KINK, [], "unknown"),
        (KINK, [NUDGED], "rounding"),
        (KINK, [STEADY, NUDGED], "rounding"),
        (KINK, [STEADY], "differs"),
        (BY_RANK, [NUDGED], "differs"),
        (FIRST, [NUDGED], "differs"),
        (LOST, [NUDGED], "differs"),
        (curve("ddp", *[0.0] * 7, 1.0), [STEADY], "differs"),
    ],
)
def test_two_curves(run: Run, nudged: list[Run], expected: str) -> None:
    word, text = judge(gaps(run), EXACT, [gaps(other) for other in nudged])
    assert word == expected
    assert ("apart at step" not in text) == (expected == "same")


def test_a_verdict_names_the_first_step_beyond_the_bound() -> None:
    assert judge(gaps(KINK), EXACT) == (
        "unknown",
        "grad_norm 2.0e-04 apart at step 4, loss at most 1.0e-02 apart (bound 1e-05)",
    )


@pytest.mark.parametrize(
    ("precision", "expected"),
    [
        ({}, EXACT),
        ({"compute": "fp32", "reduction": "fp32", "gradients": "fp32"}, EXACT),
        ({"compute": "bf16", "reduction": "fp32"}, LOW),
        ({"compute": "tf32"}, LOW),
        ({"compute": "fp32", "reduction": "bf16"}, LOW),
    ],
)
def test_low_precision_has_a_wider_bound(precision: dict[str, str], expected: object) -> None:
    assert bounds_of({"precision": precision}) is expected
