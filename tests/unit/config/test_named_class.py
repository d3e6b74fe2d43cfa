"""A class that a config names as ``module:Class``."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainer import EvaluationSet
from trainer.config.named_class import find_class
from trainer.errors import ConfigError, Origin, TrainerError


def test_a_class_of_a_package_that_imports_lazily_is_found() -> None:
    assert find_class("trainer:EvaluationSet", object, Origin("f")) is EvaluationSet


@pytest.mark.parametrize(
    ("named", "rule"),
    [
        ("trainer.errors:LaunchEror", "did you mean 'LaunchError'?"),
        ("trainer.errors:Wxyz", "known: CheckpointError, ConfigError, DataError, LaunchError"),
        (
            "no_such_module:X",
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            "trainer:EvaluationSet",
            "trainer/__init__.py has no TrainerError 'EvaluationSet'; known: ",
        ),
        ("..x:C", "must be module:Class, such as digits_cnn:DigitsCNN"),
        ("trainer", "must be module:Class"),
    ],
)
def test_what_is_not_there_is_an_error(named: str, rule: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_class(named, TrainerError, Origin("f"))
    assert str(caught.value).startswith(f"f: {named!r}: ") and rule in str(caught.value)


def test_a_folder_is_no_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "digits_run").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="the folder of this name has no ConfigError 'DigitsCNN'"):
        find_class("digits_run:DigitsCNN", ConfigError, Origin("f"))


MODULES = {
    "breaks": "x = 1\ndef f(:\n",
    "helped": "import helper\n",
    "helper": "def f():\n    return int('x')\nf()\n",
    "lacks": "\nimport no_such_module\n",
}


@pytest.mark.parametrize(
    ("module", "told"),
    [
        ("breaks", "SyntaxError: invalid syntax (breaks.py, line 2)"),
        ("helped", "helper.py:3: ValueError: invalid literal for int() with base 10: 'x'"),
        ("lacks", "lacks.py:2: ModuleNotFoundError: No module named 'no_such_module'"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line_with_its_place(
    module: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, code in MODULES.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        find_class(f"{module}:X", object, Origin("f"))
    assert str(caught.value).startswith(f"f: '{module}:X': cannot be imported: ")
    assert told in str(caught.value) and "\n" not in str(caught.value)
