"""The command ``trainer``: its version and its other name."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version

import pytest
from launchers import ROOT

from trainer.commands.cli import main


def test_version_names_the_packages_and_imports_none_of_them() -> None:
    names = ("samecurve", "torch", "accelerate", "deepspeed", "transformers")
    code = "import sys; sys.argv[1:] = ['--version']; import runpy; runpy.run_module('trainer', run_name='__main__')"
    watched = f"try:\n    {code}\nfinally:\n    print([name for name in {names[1:]} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", watched], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *lines, imported = done.stdout.splitlines()
    assert lines == [
        *(f"{name} {version(name)}" for name in names),
        f"python {sys.version.split()[0]}",
    ]
    assert imported == "[]"


def test_a_command_that_is_none_ends_with_2_and_no_command_shows_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["chekc"]) == 2
    assert "'chekc': unknown command; did you mean 'check'?" in capsys.readouterr().err
    assert main([]) == 0
    assert "evaluate     measure a model" in capsys.readouterr().out


def test_local_rank_before_the_command_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--local_rank=1", "--version"]) == 0
    assert capsys.readouterr().out.startswith("samecurve ")


@pytest.mark.parametrize("word", ["--version", "--help"])
def test_a_reader_that_has_gone_is_no_error(word: str) -> None:
    """As ``trainer --version | head -1`` leaves it."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "trainer", word],
            cwd=ROOT,
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (0, "")
