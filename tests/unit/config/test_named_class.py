"""A class that a config names as ``module:Class``, and the hints where there is none."""

from __future__ import annotations

import pytest

from trainer import EvaluationSet
from trainer.config.named_class import find_class
from trainer.errors import ConfigError, Origin, Problem


def problem(rule: str) -> ConfigError:
    return ConfigError(Problem(origin=Origin("f"), rule=rule, value=""))


def test_a_class_of_a_package_that_imports_lazily_is_found() -> None:
    assert find_class("trainer:EvaluationSet", problem) is EvaluationSet


@pytest.mark.parametrize(
    ("named", "rule"),
    [
        ("trainer:EvaluationSte", "trainer has no 'EvaluationSte'; did you mean 'EvaluationSet'?"),
        ("trainer.errors:ConfigEror", "did you mean 'ConfigError'?"),
        ("trainer.text:X", "defines no class"),
        ("no_such_module:X", "no module 'no_such_module' here"),
        ("json:X", "the module json is Python's own"),
    ],
)
def test_what_is_not_there_is_an_error_with_a_hint(named: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_class(named, problem)
    assert rule in str(caught.value)
