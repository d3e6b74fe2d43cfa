"""Text for people: tables."""

from __future__ import annotations

from trainer.text import columns

ROWS = [["name", "count"], ["a", "10"], ["longer", ""]]


def test_columns_are_as_wide_as_their_longest_cell() -> None:
    assert columns(ROWS) == ["name    count", "a       10", "longer"]


def test_columns_after_the_first_are_aligned_to_the_right() -> None:
    assert columns(ROWS, left=1) == ["name    count", "a          10", "longer"]
