"""``trainer new NAME``: a folder with a task that trains, its config, launch files and a test, to make your own of."""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import COMMAND_LINE, ConfigError, Origin, Problem

TEMPLATE = Path(__file__).parent / "templates" / "classifier"


def run(argv: Sequence[str]) -> int:
    """0: the folder is written. Raises ConfigError where something has that name already."""
    parser = argparse.ArgumentParser(prog="trainer new", description=(__doc__ or "").strip())
    parser.add_argument("name", help="the new folder")
    folder = Path(parser.parse_args(argv).name)
    try:
        left_out = shutil.ignore_patterns("__pycache__", "runs", ".*")  # traces of work on the template itself
        shutil.copytree(TEMPLATE, folder, ignore=left_out, copy_function=shutil.copyfile)
    except FileExistsError:
        rule = "exists already, and nothing is written over it; give a new folder"
        raise ConfigError(Problem(origin=Origin(COMMAND_LINE, key="name"), value=str(folder), rule=rule)) from None
    except OSError as error:
        rule = f"cannot be written: {error.strerror or error}"
        raise ConfigError(Problem(origin=Origin(COMMAND_LINE, key="name"), value=str(folder), rule=rule)) from None
    accelerate = Path(sys.executable).with_name("accelerate")
    program = "accelerate" if shutil.which("accelerate") == str(accelerate) else shlex.quote(str(accelerate))
    print(f"written: {folder}/ ({', '.join(sorted(path.name for path in folder.iterdir()))})")
    print("next:")
    print(
        f"cd {shlex.quote(str(folder))} && {program} launch --config_file accel_configs/ddp.yaml "
        "-m trainer train --config train.yaml"
    )
    return 0
