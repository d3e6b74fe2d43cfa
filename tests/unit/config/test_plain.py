"""Values as files hold them, and as runs are compared by."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np
import pytest

from trainer.config.plain import flat, plain


class Color(Enum):
    RED = "red"


@dataclass
class Point:
    x: int = 1
    memory: int = field(default=2, init=False)


@pytest.mark.parametrize(
    ("value", "in_files", "compared"),
    [
        (Color.RED, "red", "red"),
        ((1, (2, 3)), [1, [2, 3]], [1, [2, 3]]),
        ({"b", "a"}, ["a", "b"], ["a", "b"]),
        ({1: True}, {"1": True}, {"1": True}),
        (np.float64(0.5), 0.5, 0.5),
        (Point(), {"x": 1}, {"x": 1, "memory": 2}),
        (2j, "2j", "complex"),
        (Point, f"{__name__}.Point", f"{__name__}.Point"),
    ],
)
def test_values_in_files_and_compared(value: Any, in_files: Any, compared: Any) -> None:
    assert plain(value) == in_files
    assert plain(value, compared=True) == compared
    assert json.loads(json.dumps(plain(value), allow_nan=False)) == in_files


def test_nested_values_become_texts_by_dotted_names() -> None:
    values = {"lr": 0.1, "name": "a b", "plan": {"stage": 2, "empty": {}, "none": None}}
    assert flat("x.", values) == {
        "x.lr": "0.1",
        "x.name": "a b",
        "x.plan.stage": "2",
        "x.plan.none": "null",
    }
