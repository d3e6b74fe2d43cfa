"""Settings that change nothing: one notice for all of them."""

from __future__ import annotations

import pytest
from origins import sourced

from trainer.config.validate import Validator
from trainer.launching.files.unused import is_switched_on, note_unused


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (True, True),
        (500, True),
        ("cpu", True),
        ({"enabled": True}, True),
        ({"partition_activations": True}, True),
        (False, False),
        (None, False),
        (1, False),
        (-1, False),
        ("auto", False),
        ([], False),
        ({"enabled": False}, False),
    ],
)
def test_what_is_switched_on(value: object, expected: bool) -> None:
    assert is_switched_on(value) is expected


def test_unused_settings_share_one_notice() -> None:
    check = Validator()
    entries = [
        sourced(value, f"ds.json:{line} (zero.{key})")
        for line, (key, value) in enumerate({"a": False, "b": True, "c": 7}.items(), 1)
    ]
    note_unused(entries, "no effect in stage 2", check)
    note_unused(entries[:1], "no effect in stage 2", check)
    assert check.notices == ["ds.json:2: no effect in stage 2: b, c"]
    assert check.problems == []
