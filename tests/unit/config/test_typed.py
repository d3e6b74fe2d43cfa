"""Texts of the command line before their type is known."""

from __future__ import annotations

from typing import Any

import pytest

from trainer.config.typed import Typed, read_typed, typed_keys


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1e-3", 1e-3),
        ("no", False),
        ("null", None),
        ("[1, a]", [1, "a"]),
        ("'007'", "007"),
        ("a #b", "a #b"),
        (" a", " a"),
        ("!!str 5", "!!str 5"),
        ("[", "["),
    ],
)
def test_text_is_read_as_yaml_unless_it_is_text_there_too(text: str, value: Any) -> None:
    assert read_typed(Typed(text)) == value
    assert type(read_typed(Typed(text))) is type(value)


def test_only_what_was_typed_is_read() -> None:
    values = {"a": "1", "b": Typed("1"), "c": {"d": Typed("no"), "e": 2}}
    assert list(typed_keys(values)) == [("b",), ("c", "d")]
    assert read_typed(values) == {"a": "1", "b": 1, "c": {"d": False, "e": 2}}
    assert read_typed(values, [("c", "d")])["c"] == {"d": "no", "e": 2}
