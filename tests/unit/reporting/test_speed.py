"""The speed of a run: the median of its rows in steady state."""

from __future__ import annotations

from trainer.reporting.speed import steady_speed


def row(seconds: float, speed: float, tokens: float | None = None) -> dict[str, float]:
    found = {"seconds": seconds, "samples_per_second": speed}
    return found if tokens is None else found | {"tokens_per_second": tokens}


def test_the_first_row_of_each_process_does_not_count() -> None:
    rows = [row(1, 5), row(2, 100), row(3, 110), {"eval/loss": 1.0}, row(1, 6), row(2, 120)]
    assert steady_speed(rows, "samples") == 110


def test_rows_without_tokens_have_no_speed_in_tokens() -> None:
    assert steady_speed([row(1, 5), row(2, 100)], "tokens") is None
    assert steady_speed([row(1, 5, 50), row(2, 100, 1000)], "tokens") == 1000
