"""The rule that decides whether two runs have the same curves."""

from __future__ import annotations

import pytest
from judged_curves import BY_RANK, FIRST, KINK, LOST, NUDGED, REFERENCE, STEADY, curve

from trainer.commands.curves import EXACT, LOW, Gaps, Sameness, bounds_of, gaps_of, judge
from trainer.commands.runs import Run


def gaps(run: Run) -> Gaps:
    return {key: gaps_of(run, REFERENCE, key) for key in ("loss", "grad_norm")}


@pytest.mark.parametrize(
    ("run", "nudged", "expected"),
    [
        (curve("ddp", *[5e-6] * 8), [], Sameness.SAME),
        (KINK, [], Sameness.UNKNOWN),
        (KINK, [NUDGED], Sameness.ROUNDING),
        (KINK, [STEADY, NUDGED], Sameness.ROUNDING),
        (KINK, [STEADY], Sameness.DIFFERS),
        (BY_RANK, [NUDGED], Sameness.DIFFERS),
        (FIRST, [NUDGED], Sameness.DIFFERS),
        (LOST, [NUDGED], Sameness.DIFFERS),
        (curve("ddp", *[0.0] * 7, 1.0), [STEADY], Sameness.DIFFERS),
    ],
)
def test_two_curves(run: Run, nudged: list[Run], expected: Sameness) -> None:
    verdict = judge(gaps(run), EXACT, [gaps(other) for other in nudged])
    assert verdict.sameness is expected
    assert ("apart at step" not in verdict.text) == (expected is Sameness.SAME)


def test_a_verdict_names_the_first_step_beyond_the_bound() -> None:
    assert str(judge(gaps(KINK), EXACT)) == (
        "unknown: grad_norm 2.0e-04 apart at step 4, loss at most 1.0e-02 apart (bound 1e-05)"
    )


@pytest.mark.parametrize(
    ("plan", "expected"),
    [
        ({}, EXACT),
        ({"mixed_precision": "bf16"}, LOW),
        ({"precision": {"compute": "tf32"}}, LOW),
        ({"precision": {"compute": "fp32", "reduction": "bf16"}}, LOW),
    ],
)
def test_low_precision_has_a_wider_bound(plan: dict[str, object], expected: object) -> None:
    assert bounds_of(plan) is expected
