"""The speed of a run: the median of its readings in steady state, and the middle half of them."""

from __future__ import annotations

from trainer.reporting.speed import Speed, steady_speed


def row(seconds: float, speed: float, tokens: float | None = None) -> dict[str, float]:
    found = {"seconds": seconds, "samples_per_second": speed}
    return found if tokens is None else found | {"tokens_per_second": tokens}


def test_the_first_row_of_each_process_does_not_count() -> None:
    rows = [row(1, 5), row(2, 100), row(3, 110), {"eval/loss": 1.0}, row(1, 6), row(2, 120)]
    speed = steady_speed(rows, "samples")
    assert speed is not None
    assert (speed.median, speed.readings) == (110, 3)
    assert (speed.low, speed.high) == (105, 115)


def test_rows_without_tokens_have_no_speed_in_tokens() -> None:
    assert steady_speed([row(1, 5), row(2, 100)], "tokens") is None
    speed = steady_speed([row(1, 5, 50), row(2, 100, 1000)], "tokens")
    assert speed == Speed(median=1000, low=1000, high=1000, readings=1)


def test_without_readings_there_is_no_steady_speed() -> None:
    assert Speed.of_readings([]) is None
    overall = Speed(median=3.25, low=3.25, high=3.25, readings=0)
    assert overall.as_dict("samples") == {"samples_per_second": 3.25, "readings_of_speed": 0}
