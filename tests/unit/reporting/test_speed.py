"""The speed of a run: the median of its readings in steady state, and the middle half of them."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("values", [[120.0], [100.0, 110.0, 120.0, 300.0]])
def test_a_summary_gives_back_the_speed_that_was_written(values: list[float]) -> None:
    speed = Speed.of_readings(values)
    assert speed is not None
    assert Speed.of_summary(speed.as_dict("samples"), "samples") == speed
    assert Speed.of_summary(speed.as_dict("samples"), "tokens") is None


def test_without_readings_there_is_no_steady_speed() -> None:
    assert Speed.of_readings([]) is None
    overall = Speed(median=3.25, low=3.25, high=3.25, readings=0)
    assert overall.as_dict("samples") == {"samples_per_second": 3.25, "readings_of_speed": 0}


def test_a_speed_for_people_has_its_spread_from_two_readings_on() -> None:
    assert Speed(median=3.14, low=3, high=4, readings=1).text("samples") == "3.1 samples/s"
    text = Speed(median=12345, low=12000, high=13000, readings=8).text("tokens")
    assert text == "12,345 tokens/s (middle half of 8 readings: 12,000 to 13,000)"
