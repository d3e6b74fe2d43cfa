"""Start a training as a user would, for ``trainer parity``."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..config.naming import as_literal
from .runs import Run, read_run

# The last line of a traceback, or a line in which a rank names its error. The launcher's own error
# comes last and says nothing of the cause.
_ERROR = re.compile(
    r"^\s*(?:\[rank\d+\]:\s*|traceback : )?"
    r"(?!\S*(?:ChildFailed|CalledProcess)Error)([\w.]*(?:Error|Exception): .+|rank \d+: .+)$",
    re.MULTILINE,
)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A training to start.

    Args:
        name: the name of the run, for people.
        launch_file: an accelerate YAML. None trains in one process, without a launcher.
        script: the script of the user. None runs ``trainer train``.
        arguments: the config and the settings of the training.
        folder: the folder of all runs. That of this run is runs/NAME. logs/NAME.txt has the command
            and all that the processes print.
    """

    name: str
    launch_file: str | None
    script: str | None
    arguments: Sequence[str]
    folder: Path

    def run(self) -> Run:
        """Train, wait for the end, and read the run back.

        Returns:
            The run. Only its name and its error if the training failed.
        """
        print(f"{self.name} ...", flush=True)
        output = self.folder / "runs" / self.name
        words = [*self._command(), f"--output_dir={as_literal(str(output))}"]
        log_file = self.folder / "logs" / f"{self.name}.txt"
        log_file.parent.mkdir(parents=True, exist_ok=True)
        with open(log_file, "w", encoding="utf-8") as log:
            print(shlex.join(words), file=log, flush=True)
            code = subprocess.run(words, stdout=log, stderr=log, check=False).returncode
        if code:
            printed = log_file.read_text(encoding="utf-8", errors="replace")
            return Run(name=self.name, path=str(output), error=last_error(printed))
        return replace(read_run(output), name=self.name)

    def _command(self) -> list[str]:
        words = [sys.executable]
        if self.launch_file is not None:
            words += ["-m", "accelerate.commands.launch", "--config_file", self.launch_file]
            words += ["--main_process_port", str(_free_port())]
        words += ["-m", "trainer", "train"] if self.script is None else [self.script]
        return [*words, *self.arguments]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def last_error(log: str) -> str:
    """Return the line of a log that names the error. The last line if none does."""
    found = _ERROR.search(log)
    if found is not None:
        return found[1]
    return log.strip().rpartition("\n")[2].strip()
