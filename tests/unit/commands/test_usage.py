"""Arguments of the commands that must be local paths, and errors in the command line."""

from __future__ import annotations

import argparse

import pytest

from trainer.commands.usage import positive_number
from trainer.errors import usage_error


def test_usage_error_names_option_value_and_rule() -> None:
    error = usage_error("to", "runs/a", "exists already; give a new folder")
    assert str(error) == "command line: to: 'runs/a': exists already; give a new folder"
    assert error.exit_code == 2


@pytest.mark.parametrize("text", ["0", "-3", "2.5", "many"])
def test_a_positive_number(text: str) -> None:
    assert positive_number("12") == 12
    with pytest.raises(
        argparse.ArgumentTypeError, match=f"'{text}': must be a number of at least 1"
    ):
        positive_number(text)
