"""Errors: their lines of text, and that they can be sent from one process to another."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from trainer.errors import (
    COMMAND_LINE,
    CheckpointError,
    ConfigError,
    Origin,
    Problem,
    origin_of,
    writing,
)


def test_an_error_of_the_main_process_is_the_same_on_the_others() -> None:
    """It is sent to them as a pickle: whichever rank reports it first, the text is the same."""
    error = ConfigError(
        [Problem(origin=Origin("a.yaml:1", key="lr"), rule="rule", value=v) for v in (-1, -2)]
    )
    sent = pickle.loads(pickle.dumps(error))
    assert (str(sent), sent.problems) == (str(error), error.problems)


@pytest.mark.parametrize(
    ("origin", "value", "line"),
    [
        (Origin("a.yaml", line=3, key="lr"), -1, "a.yaml:3: lr: -1: must be positive"),
        (Origin("a.yaml", line=3), None, "a.yaml:3: must be positive"),
        (Origin(COMMAND_LINE, key="--lr"), True, "command line: --lr: true: must be positive"),
        (Origin("a.yaml", key="hf_token"), "abc", "a.yaml: hf_token: '(hidden)': must be positive"),
        (Origin("a"), "x" * 100, f"a: '{'x' * 37}...{'x' * 38}': must be positive"),
    ],
)
def test_a_problem_is_one_line(origin: Origin, value: object, line: str) -> None:
    assert str(Problem(origin=origin, value=value, rule="must be positive")) == line
    assert str(origin.error("must be positive", value)) == line


def test_origins_print_their_place_and_key() -> None:
    assert str(Origin("a.yaml", line=3, key="lr")) == "a.yaml:3 (lr)"
    assert str(Origin("a.yaml", line=3).named("batch.size")) == "a.yaml:3 (batch.size)"
    assert str(Origin("a.yaml")) == "a.yaml"


def test_a_file_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "missing/file"
    with (
        pytest.raises(
            CheckpointError,
            match=f"^{path}: cannot be written: No such file or directory; once the path can be written, resume: auto",
        ),
        writing(path),
    ):
        path.write_text("text")


def test_a_key_that_no_file_set_comes_from_the_config_made_in_python() -> None:
    origins = {"lr": Origin("a.yaml", line=3, key="lr")}
    assert str(origin_of(origins, "lr")) == "a.yaml:3 (lr)"
    assert str(origin_of(origins, "seed")) == "TrainConfig (seed)"
