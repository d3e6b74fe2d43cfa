"""``trainer new NAME``: write a folder with a task that trains, its config, launch files and a test
to start from.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from .usage import local_text, usage_error

TEMPLATE = Path(__file__).parent / "templates" / "classifier"


def run(argv: Sequence[str]) -> int:
    """Write the folder, print the command that trains in it, and return 0.

    Raises:
        ConfigError: a file or folder of that name exists, or it cannot be written.
    """
    parser = argparse.ArgumentParser(prog="trainer new", description=(__doc__ or "").strip())
    parser.add_argument("name", type=local_text, help="the new folder")
    folder = Path(parser.parse_args(argv).name)

    _copy_template(folder)

    names = sorted(path.name for path in folder.iterdir())
    print(f"written: {folder}/ ({', '.join(names)})")
    print("next:")
    launch = f"{_accelerate()} launch --config_file accel_configs/ddp.yaml"
    print(f"cd {shlex.quote(str(folder))} && {launch} -m trainer train --config train.yaml")
    return 0


def _copy_template(folder: Path) -> None:
    """Copy the template to a new folder, without what work on the template itself leaves in it."""
    leftovers = shutil.ignore_patterns("__pycache__", "runs", ".*")
    try:
        shutil.copytree(TEMPLATE, folder, ignore=leftovers, copy_function=shutil.copyfile)
    except FileExistsError:
        rule = "exists already, and nothing is written over it; give a new folder"
        raise usage_error("name", str(folder), rule) from None
    except OSError as error:
        rule = f"cannot be written: {error.strerror or error}"
        raise usage_error("name", str(folder), rule) from None


def _accelerate() -> str:
    """Return how to call the ``accelerate`` of this Python: by its path, unless PATH finds it."""
    program = Path(sys.executable).with_name("accelerate")
    if shutil.which("accelerate") == str(program):
        return "accelerate"
    return shlex.quote(str(program))
