"""The commands on the page of the API run."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from doc_pages import API, examples, write_files
from launchers import BIN, ROOT, clean_environment


def test_api_commands_run(module_folder: Path) -> None:
    """One job: every command on the page, one after the other."""
    write_files(API)
    commands = [text for language, text in examples(API) if language == "sh"]
    assert len(commands) == 3
    path = {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-e", "-c", "".join(commands)],
        env=clean_environment(path), capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    assert "fsdp on 2 processes" in done.stdout
    assert "step-00000040" in done.stdout
