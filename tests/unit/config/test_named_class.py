"""A class that a config names as ``module:Class``."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer import EvaluationSet
from trainer.config.named_class import find_class
from trainer.errors import ConfigError, Origin


def test_a_class_of_a_package_that_imports_lazily_is_found() -> None:
    assert find_class("trainer:EvaluationSet", object, Origin("f")) is EvaluationSet


@pytest.mark.parametrize(
    ("named", "rule"),
    [
        (
            "trainer:EvaluationSte",
            "the module has no 'EvaluationSte'; did you mean 'EvaluationSet'?",
        ),
        ("trainer.errors:ConfigEror", "did you mean 'ConfigError'?"),
        ("no_such_module:X", "No module named 'no_such_module' beside the config or the script"),
        ("trainer:EvaluationSet", "does not name a subclass of trainer.ConfigError"),
        ("..x:C", "must be module:Class, such as mymodule:LogImages"),
        ("trainer", "must be module:Class"),
    ],
)
def test_what_is_not_there_is_an_error(named: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_class(named, ConfigError, Origin("f"))
    assert str(caught.value).startswith(f"f: {named!r}: ") and rule in str(caught.value)


def test_a_folder_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits_run").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="No module named 'digits_run' beside the config"):
        find_class("digits_run:DigitsCNN", ConfigError, Origin("f"))
