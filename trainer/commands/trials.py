"""Start a training as a user would, for ``trainer parity``."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ..config.arguments import kind_of
from ..config.documents import read_document
from ..config.naming import as_literal
from ..launching.request import visible_gpus
from .finished_runs import Run, read_run

# The last line of a traceback, or a line in which a rank names an error. The launcher's own error
# comes last and says nothing of the cause.
_ERROR = re.compile(
    r"^\s*(?:\[rank\d+\]:\s*|traceback : )?"
    r"(?!\S*(?:ChildFailed|CalledProcess)Error)([\w.]*(?:Error|Exception): .+|"
    r"rank \d+: (?!Traceback).+)$",
    re.MULTILINE,
)


def train(name: str, launch_file: str, arguments: Sequence[str], folder: Path) -> Run:
    """Train, wait for the end, and read the run back. A run that failed has a name and an error.

    Without a launch file ("") a single process trains. logs/NAME.txt has the command and output.
    """
    print(f"{name} ...", flush=True)
    words = [sys.executable]
    if launch_file and kind_of(read_document(launch_file).data) == "accel_config":
        words += [
            "-m",
            "accelerate.commands.launch",
            "--config_file",
            launch_file,
            "--main_process_port",
            "0",  # a free port
        ]
    elif launch_file:  # does not say how many processes
        words += [
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc_per_node",
            str(visible_gpus() or 2),
        ]
        arguments = [launch_file, *arguments]
    output = f"{folder}/runs/{name}"
    own = ["--run_name=null", f"--output_dir={as_literal(output)}"]
    words += ["-m", "trainer", "train", *arguments, *own]
    log_file = folder / f"logs/{name}.txt"
    log_file.parent.mkdir(parents=True, exist_ok=True)
    with log_file.open("w") as log:
        print(shlex.join(words), file=log, flush=True)
        done = subprocess.run(words, stdout=log, stderr=log, check=False)
    if done.returncode:
        error = last_error(log_file.read_text(errors="replace"))
        return Run(name=name, path=output, error=error)
    return read_run(output)


def last_error(log: str) -> str:
    """Return the line of a log that names the error. The last line if none does."""
    found = _ERROR.search(log)
    return found[1] if found else log.strip().rpartition("\n")[2].strip()
