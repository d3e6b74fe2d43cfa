"""``trainer check``: its command line."""

from __future__ import annotations

import subprocess
import sys

import pytest
from check_command import trainer_command
from launchers import ROOT, clean_environment


@pytest.mark.parametrize(("words", "code"), [((), 0), (("chek",), 2)])
def test_check_as_a_command_of_its_own(words: tuple[str, ...], code: int) -> None:
    done = trainer_command(*words)
    assert done.returncode == code
    assert "check" in (done.stderr if code else done.stdout)


def test_the_options_can_be_read_without_torch() -> None:
    code = "import sys; from trainer.commands import cli\ntry: cli.main(['check', '--help'])\nexcept SystemExit: pass\n"
    code += "assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=clean_environment(), capture_output=True,
                          text=True, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
