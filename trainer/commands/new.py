"""``trainer new NAME``: write a folder with a task that trains, a config, launch files and a test
to start from.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from ..rehearsal.changes import TEMPLATE
from .usage import Options, only_folders


def run(options: Options, settings: Sequence[str], words: Sequence[str]) -> int:
    """Write the folder, print the command that trains there, and return 0."""
    (name,) = only_folders(settings, words)
    folder = Path(name)
    # Work on the template itself leaves such files.
    leftovers = shutil.ignore_patterns("__pycache__", "runs", ".*")
    shutil.copytree(TEMPLATE, folder, ignore=leftovers, copy_function=shutil.copyfile)

    accelerate = Path(sys.executable).with_name("accelerate")
    launch = "launch --config_file accel_configs/ddp.yaml -m trainer train --config train.yaml"
    print("written:", *sorted(folder.iterdir()))
    print(f"next:\ncd {shlex.quote(name)} && {shlex.quote(str(accelerate))} {launch}")
    return 0
