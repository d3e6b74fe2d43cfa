"""How often something is done in a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config.interval import check_interval, interval_of


def due(value: int | str, steps_per_epoch: int | None, last: int) -> list[int]:
    interval = interval_of(value, steps_per_epoch)
    return [step for step in range(1, last + 1) if interval.is_due_at(step)]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (7, [7, 14, 21]),
        ("1 epoch", [10, 20]),
        ("0.25 epoch", [3, 5, 8, 10, 13, 15, 18, 20, 23]),
        ("1/4 epoch", [3, 5, 8, 10, 13, 15, 18, 20, 23]),
        ("1.5 epochs", [15]),
    ],
)
def test_an_interval_is_steps_or_parts_of_an_epoch(value: int | str, expected: list[int]) -> None:
    assert due(value, 10, 24) == expected


@given(st.integers(1, 60), st.integers(1, 60), st.integers(1, 5))
def test_the_end_of_an_epoch_is_always_hit(parts: int, steps_per_epoch: int, epochs: int) -> None:
    parts = min(parts, steps_per_epoch)
    steps = due(f"1/{parts} epoch", steps_per_epoch, epochs * steps_per_epoch)
    assert set(range(steps_per_epoch, epochs * steps_per_epoch + 1, steps_per_epoch)) <= set(steps)
    assert len(steps) == parts * epochs, "as often as there are parts"


@pytest.mark.parametrize(
    "wrong",
    ["0.25", "epoch", "0 epochs", "0.0 epochs", "1/0 epoch", "-1 epoch", "1/2/3 epoch", "", 0, 2.0],
)
def test_what_is_no_interval(wrong: object) -> None:
    with pytest.raises(ValueError, match=r"^must be steps such as 100, or epochs such as"):
        check_interval(wrong)


def test_less_than_a_step_is_refused_with_the_steps_of_an_epoch() -> None:
    assert due("1/8 epoch", 8, 3) == [1, 2, 3]
    with pytest.raises(ValueError, match=r"^is shorter than one step: an epoch has 8 steps here"):
        interval_of("1/9 epoch", 8)
    with pytest.raises(ValueError, match=r"^a stream has no known length; use a number of steps"):
        interval_of("1/9 epoch", None)
