"""``trainer compare``: the sentence that recommends a layout."""

from __future__ import annotations

import pytest
from made_runs import with_speeds

from trainer.commands.compare.report import make_report


@pytest.mark.parametrize(
    ("ddp", "fsdp", "answer"),
    [
        (
            (100, 120, 140),
            (90, 110, 130),
            "No difference in speed that can be told: ddp 120 samples/s (110 to 130), fsd",
        ),
        (
            (200, 210, 220),
            (90, 100, 110),
            "Take ddp: 210 samples/s, 110% ahead of fsdp; half of the readings are within",
        ),
        ((100, 101, 102), (97, 98, 99), "No difference in speed that can be told"),
    ],
)
def test_no_layout_is_recommended_within_the_spread_of_another(
    ddp: tuple[float, ...], fsdp: tuple[float, ...], answer: str
) -> None:
    told = make_report([with_speeds("ddp", *ddp), with_speeds("fsdp", *fsdp, strategy="fsdp")])
    assert told["recommendation"].startswith(answer)


def test_repeats_of_one_layout_measure_the_noise() -> None:
    """Three repeats of one run on a shared machine: 792 to 1523 samples/s, each with a narrow
    spread.
    """
    repeats = [with_speeds(str(speed), speed - 5, speed, speed + 5) for speed in (792, 1201, 1523)]
    told = make_report(repeats)["recommendation"]
    assert told.startswith("One layout that ran 3 times: 792, 1201, 1523 samples/s, 92% apart")
    other = with_speeds("fsdp", 700, 702, 704, strategy="fsdp")
    assert make_report([*repeats, other])["recommendation"].startswith(
        "No difference in speed that can be told"
    )
    slow = with_speeds("fsdp", 300, 302, 304, strategy="fsdp")
    assert make_report([*repeats, slow])["recommendation"].startswith(
        "Take 792 and 1201 and 1523: 1201 samples/s, 298%"
    )
