"""One run of the user's script in processes of its own, for comparing it with others."""

from __future__ import annotations

import json
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ONE = "one process"
# What ends, measures or keeps a model on the way says nothing about the steps.
_OFF = {"eval_every": "null", "save_every": "null", "best_metric": "null", "early_stop_patience": "null"}


@dataclass(frozen=True, kw_only=True)
class Cut:
    """How one run cuts the global batch: ``micro`` x ``accumulation`` x ``world`` samples."""

    strategy: str
    world: int
    micro: int
    accumulation: int


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one run left: its rows of metrics.jsonl and its model, or its last error."""

    name: str
    cut: Cut
    rows: list[dict[str, Any]]
    model: Path
    error: str = ""


def try_out(
    name: str, cut: Cut, place: Path, script: Path, files: Sequence[str], settings: Mapping[str, str], steps: int
) -> Result:
    """Train under the accelerate YAML ``name``, or without a launcher for ``ONE``, as a user would start it.

    Args:
        place: a new folder; the run goes to ``run`` in it, what the processes print to ``log.txt``.
        files: arguments that name the training config.
        settings: what else was typed for it.
    """
    words = [sys.executable, str(script)]
    if name != ONE:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        words = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", name]
        words += ["--main_process_port", port, str(script)]
    ours = {
        **_OFF,
        "max_steps": str(steps),
        "log_every": "1",
        "output_dir": str(place / "run"),
        "overwrite": "false",
        "micro_batch_size": str(cut.micro),
        "accumulation_steps": str(cut.accumulation),
        "global_batch_size": str(cut.micro * cut.accumulation * cut.world),
    }
    words += [*files, *(f"--{key}={value}" for key, value in ({**settings, **ours}).items())]
    place.mkdir(parents=True)
    with open(place / "log.txt", "w+", encoding="utf-8") as log:
        log.write(shlex.join(words) + "\n")
        log.flush()
        code = subprocess.run(words, stdout=log, stderr=subprocess.STDOUT, check=False).returncode
        log.seek(0)
        said = log.read()
    rows, model = place / "run" / "metrics.jsonl", place / "run" / "model" / "model.safetensors"
    if code:
        return Result(name=name, cut=cut, rows=[], model=model, error=_last_error(said) or f"exit code {code}")
    read = [json.loads(line) for line in rows.read_text(encoding="utf-8").splitlines()]
    return Result(name=name, cut=cut, rows=[row for row in read if "loss" in row], model=model)


def _last_error(said: str) -> str:
    """The line that names the error: what follows ``rank N:``, else the last one (which ends a traceback)."""
    lines = [line.strip() for line in said.splitlines() if line.strip(" =-\t")]
    ours = [line for line in lines if line.startswith("rank ") and ": " in line and "(local_rank" not in line]
    starts = [number for number, line in enumerate(lines) if line.endswith("Traceback (most recent call last):")]
    if starts:
        after = lines[starts[-1] + 1 :]
        return next((line for line in after if line.partition(":")[0].endswith(("Error", "Exception"))), lines[-1])
    return ours[-1] if ours else lines[-1] if lines else ""
