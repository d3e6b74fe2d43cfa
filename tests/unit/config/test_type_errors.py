"""What pydantic finds, as problems with a key, a rule and a hint."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from trainer.config.validate import Validator
from trainer.errors import Origin, Sourced


@dataclass(frozen=True, kw_only=True)
class Layer:
    width: Annotated[int, Field(ge=1)] = 1
    kind: Literal["relu", "gelu"] = "relu"


@dataclass(frozen=True, kw_only=True)
class Model:
    layers: list[Layer] = field(default_factory=list)
    named: dict[str, Layer | int] = field(default_factory=dict)
    files: str | list[str] = "a"
    limit: Annotated[int, Field(multiple_of=4)] | Literal["auto"] = "auto"


def lines(**values: Any) -> list[str]:
    check = Validator("f")
    check.build(Model, values)
    return [str(problem) for problem in check.problems]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"layers": [{}, {"width": 0}]}, "f: layers.1.width: 0: must be at least 1"),
        ({"layers": [{"widht": 2}]}, "f: layers.0.widht: 2: unknown key; did you mean 'width'?"),
        ({"layers": [3]}, "f: layers.0: 3: must be a mapping"),
        ({"named": {"a": {"width": "2"}}}, "f: named.a.width: '2': must be a whole number; remove the quotes"),
        ({"named": {"a": "b"}}, "f: named.a: 'b': must be a mapping or a whole number"),
        ({"named": {"a": {"kind": "gellu"}}}, "f: named.a.kind: 'gellu': must be one of 'relu', 'gelu'; did you mean 'gelu'?"),
        ({"files": 3}, "f: files: 3: must be text or a list such as [a, b]"),
        ({"files": ["a", 3]}, "f: files.1: 3: must be text; put it in quotes"),
        ({"files": ["a", {"lr": None}]}, "f: files.1: {'lr': None}: must be text; put it in quotes, for YAML reads braces as a mapping"),
        ({"limit": 6}, "f: limit: 6: must be a multiple of 4"),
        ({"limit": 8.0}, "f: limit: 8.0: must be a whole number or one of 'auto'; write 8"),
    ],
)  # fmt: skip
def test_a_problem_names_its_place_and_rule(values: dict[str, Any], line: str) -> None:
    assert lines(**values) == [line]


def test_all_places_of_one_value_are_reported() -> None:
    told = lines(layers=[{"width": 0}, {"kind": 1}], named={"a": {"width": True}})
    assert [line.split(": ")[1] for line in told] == [
        "layers.0.width",
        "layers.1.kind",
        "named.a.width",
    ]


def test_a_single_value_is_refused_at_its_own_origin() -> None:
    check = Validator()
    found = Sourced(False, Origin("a.yaml", 3, "mixed_precision"))
    assert check.read(Literal["no", "bf16"], found) is None
    assert [str(problem) for problem in check.problems] == [
        "a.yaml:3: mixed_precision: false: must be one of 'no', 'bf16'; "
        "write 'no' in quotes, for YAML reads a bare no as false"
    ]
