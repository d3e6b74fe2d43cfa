"""Trainings in processes of their own, started as a user would start them; and whether two of them learned the same."""

from __future__ import annotations

import math
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoint.export import MODEL_FILE, exported_file
from ..errors import COMMAND_LINE, ConfigError, Origin, Problem
from .runs import read_run

Curve = Mapping[int, float | None]

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
    """What one run left: its precision, its logged rows by step and its model; or its last error."""

    name: str
    cut: Cut
    model: Path
    precision: str = "no"
    rows: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    error: str = ""

    def curve(self, key: str) -> dict[int, float | None]:
        return {step: row[key] for step, row in self.rows.items()}


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """How far two runs may be apart, relatively, and still count as the same.

    Args:
        first: the loss of the first step: the model is the same, only sums are taken in another order.
        step: the loss and the gradient norm of any step of a short trial.
        mean: the loss, averaged over the logged steps of a whole training: an optimizer amplifies differences.
        weights: all weights together after a short trial, relative to the way they moved.
    """

    first: float
    step: float
    mean: float
    weights: float


# Measured under bf16 over 10 steps of the two examples, each strategy against one process: loss 1.3e-2, norm 2.8e-2,
# weights 9.1e-2 (2026-11-21, two x86 CPU cores, torch 2.13, gloo); fp16 is finer than bf16.
BOUNDS = {
    "no": Bounds(first=1e-5, step=1e-5, mean=1e-2, weights=1e-2),
    "bf16": Bounds(first=2e-2, step=5e-2, mean=5e-2, weights=2e-1),
    "fp16": Bounds(first=2e-2, step=5e-2, mean=5e-2, weights=2e-1),
}


@dataclass(frozen=True, kw_only=True)
class Gap:
    """How far a curve is from another over the steps they share, relatively; NaN where a value is not a number."""

    first_step: int
    first: float
    mean: float
    largest_step: int
    largest: float


def gap(ours: Curve, theirs: Curve) -> Gap | None:
    """Measure ``ours`` against ``theirs``; None where they share no step. A value of None was not a number."""
    steps = sorted(ours.keys() & theirs.keys())
    if not steps:
        return None
    apart = {step: _relative(ours[step], theirs[step]) for step in steps}
    worst = max(steps, key=lambda step: math.inf if math.isnan(apart[step]) else apart[step])
    return Gap(
        first_step=steps[0],
        first=apart[steps[0]],
        mean=sum(apart.values()) / len(steps),
        largest_step=worst,
        largest=apart[worst],
    )


def _relative(ours: float | None, theirs: float | None) -> float:
    if ours is None or theirs is None:
        return math.nan
    return abs(ours - theirs) / max(abs(theirs), 1e-12)


def check_script(script: str | None) -> None:
    """Check that a script, where one is named, exists.

    Raises:
        ConfigError: it does not.
    """
    if script is not None and not Path(script).is_file():
        rule = "does not exist; give the script that calls trainer.main(), or leave --script out"
        raise ConfigError(Problem(origin=Origin(COMMAND_LINE, key="script"), value=script, rule=rule))


def try_out(
    name: str, cut: Cut, place: Path, script: str | None, files: Sequence[str], settings: Mapping[str, str], steps: int
) -> Result:
    """Train under the accelerate YAML ``name``, or without a launcher for ``ONE``.

    Args:
        place: a new folder; the run goes to ``run`` in it, what the processes print to ``log.txt``.
        files: arguments that name the training config.
        settings: what else was typed for it.
    """
    output = place / "run"
    ours = {
        **_OFF,
        "max_steps": str(steps),
        "log_every": "1",
        "output_dir": str(output),
        "overwrite": "false",
        "micro_batch_size": str(cut.micro),
        "accumulation_steps": str(cut.accumulation),
        "global_batch_size": str(cut.micro * cut.accumulation * cut.world),
    }
    arguments = [*files, *(f"--{key}={value}" for key, value in {**settings, **ours}.items())]
    error = start(None if name == ONE else name, script, arguments, place / "log.txt")
    model = exported_file(output / "model") or output / "model" / MODEL_FILE
    if error:
        return Result(name=name, cut=cut, model=model, error=error)
    run = read_run(output)
    rows = {row["step"]: row for row in run.rows if "loss" in row}
    return Result(name=name, cut=cut, model=model, precision=run.plan["mixed_precision"], rows=rows)


def start(
    launch_file: str | None, script: str | None, arguments: Sequence[str], log: Path, *, verbose: bool = False
) -> str:
    """Train under an accelerate YAML, or in one process without a launcher; wait for the end.

    Args:
        script: the user's; without one the command ``trainer train`` runs the task that the config names.
        arguments: for the training: its config and settings.
        log: a new file for the command and all that the processes print.
        verbose: print that to the terminal instead.

    Returns:
        The last error; empty where the training ended well.
    """
    words = [sys.executable]
    if launch_file is not None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        words += ["-m", "accelerate.commands.launch", "--config_file", launch_file, "--main_process_port", port]
    words += ["-m", "trainer", "train"] if script is None else [script]
    words += arguments
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w+", encoding="utf-8") as file:
        file.write(shlex.join(words) + "\n")
        file.flush()
        output = None if verbose else file
        code = subprocess.run(words, stdout=output, stderr=output, check=False).returncode
        file.seek(0)
        next(file)
        return "" if code == 0 else last_error(file.read()) or f"exit code {code}"


def last_error(said: str) -> str:
    """Find the line that names the error: torchrun's root cause, what follows ``rank N:``, or what ends a traceback."""
    _, cause, after = said.rpartition("Root Cause")
    if cause and (found := re.search(r"traceback : (.*)", after, re.DOTALL)):
        said = found[1]
    lines = [line.strip() for line in said.splitlines() if line.strip(" =-\t")]
    starts = [number for number, line in enumerate(lines) if line.endswith("Traceback (most recent call last):")]
    if starts:
        after_it = lines[starts[-1] + 1 :]
        return next((line for line in after_it if line.partition(":")[0].endswith(("Error", "Exception"))), lines[-1])
    if cause and lines:
        return lines[0]
    ours = [line for line in lines if line.startswith("rank ") and ": " in line and "(local_rank" not in line]
    return ours[-1] if ours else lines[-1] if lines else ""
