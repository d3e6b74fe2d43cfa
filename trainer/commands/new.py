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
    """Write the folder; return 0.

    Raises:
        ConfigError: something has that name already.
    """
    parser = argparse.ArgumentParser(prog="trainer new", description=(__doc__ or "").strip())
    parser.add_argument("name", type=local_text, help="the new folder")
    folder = Path(parser.parse_args(argv).name)
    try:
        left_out = shutil.ignore_patterns(
            "__pycache__", "runs", ".*"
        )  # traces of work on the template itself
        shutil.copytree(TEMPLATE, folder, ignore=left_out, copy_function=shutil.copyfile)
    except FileExistsError:
        rule = "exists already, and nothing is written over it; give a new folder"
        raise usage_error("name", str(folder), rule) from None
    except OSError as error:
        rule = f"cannot be written: {error.strerror or error}"
        raise usage_error("name", str(folder), rule) from None
    accelerate = Path(sys.executable).with_name("accelerate")
    program = (
        "accelerate"
        if shutil.which("accelerate") == str(accelerate)
        else shlex.quote(str(accelerate))
    )
    print(f"written: {folder}/ ({', '.join(sorted(path.name for path in folder.iterdir()))})")
    print("next:")
    print(
        f"cd {shlex.quote(str(folder))} && {program} launch --config_file accel_configs/ddp.yaml "
        "-m trainer train --config train.yaml"
    )
    return 0
