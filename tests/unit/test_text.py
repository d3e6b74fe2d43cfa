"""Text for people: tables, versions."""

from __future__ import annotations

import pytest

from trainer.text import (
    did_you_mean,
    metrics_text,
)


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ([], "known: none"),
        (["height", "depth"], "known: depth, height"),
        (["height", "width"], "did you mean 'width'?"),
        (
            [f"zzz{n}" for n in range(15)],
            "known: zzz0, zzz1, zzz10, zzz11, zzz12, zzz13, zzz14, zzz2, ",
        ),
        (
            [*(f"aaa{n}" for n in range(40)), "width_of_all_hidden_layers"],
            "known: width_of_all_hidden_layers, aaa",
        ),
    ],
)
def test_only_names_that_are_like_it_are_proposed(known: list[str], said: str) -> None:
    assert did_you_mean("widt", known).startswith(said)


def test_a_line_of_a_thousand_metrics_is_short() -> None:
    text = metrics_text({f"eval/set{number}/loss": 1.0 for number in range(1000)})
    assert len(text) < 400 and text.endswith("eval/set11/loss 1.0000 (and 988 more)")
