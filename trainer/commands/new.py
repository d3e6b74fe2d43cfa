"""``trainer new NAME``: write a folder with a task that trains, a config, launch files and a test
to start from.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from .usage import Options, read_folders

TEMPLATE = Path(__file__).parent / "templates" / "classifier"


def run(argv: Sequence[str]) -> int:
    """Write the folder, print the command that trains there, and return 0."""
    _, (name,) = read_folders(__doc__, Options, argv)
    folder = Path(name)
    # Work on the template itself leaves such files.
    leftovers = shutil.ignore_patterns("__pycache__", "runs", ".*")
    shutil.copytree(TEMPLATE, folder, ignore=leftovers, copy_function=shutil.copyfile)

    names = sorted(path.name for path in folder.iterdir())
    accelerate = shlex.quote(str(Path(sys.executable).with_name("accelerate")))
    launch = f"{accelerate} launch --config_file accel_configs/ddp.yaml"
    print(f"written: {folder}/ ({', '.join(names)})\nnext:")
    print(f"cd {shlex.quote(str(folder))} && {launch} -m trainer train --config train.yaml")
    return 0
