"""Start trainings in processes of their own, as a user would, and measure how far apart two of them
are.

``trainer parity`` and ``trainer compare --launch`` run these.
"""

from __future__ import annotations

import math
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from .runs import Run, read_run
from .usage import usage_error


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A training to start.

    Args:
        name: for people.
        launch_file: an accelerate YAML; None trains in one process, without a launcher.
        script: the user's; None runs ``trainer train``, for which the config names the task.
        arguments: of the training: its config and its settings.
        output: the folder of the run.
        log: a new file for the command and all that the processes print.
    """

    name: str
    launch_file: str | None
    script: str | None
    arguments: Sequence[str]
    output: Path
    log: Path

    def run(self, *, verbose: bool = False) -> Run:
        """Train, wait for the end, and read the run back: with its last error only, where it
        failed.

        Args:
            verbose: print what the processes print to the terminal instead of the log.
        """
        print(f"{self.name} ...", flush=True)
        error = self._train(verbose)
        if error:  # what lies in the folder may be of a former run
            return Run(name=self.name, path=str(self.output), error=error)
        return replace(read_run(self.output), name=self.name)

    def _train(self, verbose: bool) -> str:
        words = self._command()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "w+", encoding="utf-8") as file:
            file.write(shlex.join(words) + "\n")
            file.flush()
            output = None if verbose else file
            code = subprocess.run(words, stdout=output, stderr=output, check=False).returncode
            file.seek(0)
            next(file)
            return "" if code == 0 else last_error(file.read()) or f"exit code {code}"

    def _command(self) -> list[str]:
        words = [sys.executable]
        if self.launch_file is not None:
            port = str(_free_port())
            words += ["-m", "accelerate.commands.launch", "--config_file", self.launch_file]
            words += ["--main_process_port", port]
        words += ["-m", "trainer", "train"] if self.script is None else [self.script]
        return [*words, *self.arguments, f"--output_dir={self.output}"]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_script(script: str | None) -> None:
    """Check that a script, where one is named, exists.

    Raises:
        ConfigError: it does not.
    """
    if script is not None and not Path(script).is_file():
        raise usage_error(
            "script",
            script,
            "does not exist; give the script that calls trainer.main(), or leave --script out",
        )


def last_error(log: str) -> str:
    """Find the line that names the error: torchrun's root cause, what follows ``rank N:``, or what
    ends a traceback.
    """
    _, cause, after = log.rpartition("Root Cause")
    if cause and (found := re.search(r"traceback : (.*)", after, re.DOTALL)):
        log = found[1]
    lines = [line.strip() for line in log.splitlines() if line.strip(" =-\t")]
    starts = [
        number
        for number, line in enumerate(lines)
        if line.endswith("Traceback (most recent call last):")
    ]
    if starts:
        after_it = lines[starts[-1] + 1 :]
        return next(
            (line for line in after_it if line.partition(":")[0].endswith(("Error", "Exception"))),
            lines[-1],
        )
    if cause and lines:
        return lines[0]
    ours = [
        line
        for line in lines
        if line.startswith("rank ") and ": " in line and "(local_rank" not in line
    ]
    return ours[-1] if ours else lines[-1] if lines else ""


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """The relative differences up to which two runs count as the same.

    Args:
        first: of the loss of the first step: the model is the same, only sums are taken in another
            order.
        step: of the loss and the gradient norm of any step.
        mean: of the loss, averaged over the logged steps of a whole training: beyond it rounding is
            no explanation that anybody would take without a nudged run.
        weights: of all weights together after a short trial, relative to the way they moved.
    """

    first: float
    step: float
    mean: float
    weights: float


# Measured under bf16 over 10 steps of the two examples, each strategy against one process: loss
# 1.3e-2, norm 2.8e-2, weights 9.1e-2 (2026-11-21, two x86 CPU cores, torch 2.13, gloo); fp16 is
# finer than bf16.
BOUNDS = {
    "no": Bounds(first=1e-5, step=1e-5, mean=1e-2, weights=1e-2),
    "bf16": Bounds(first=2e-2, step=5e-2, mean=5e-2, weights=2e-1),
    "fp16": Bounds(first=2e-2, step=5e-2, mean=5e-2, weights=2e-1),
    "tf32": Bounds(first=2e-2, step=5e-2, mean=5e-2, weights=2e-1),  # the digits of fp16
}


def precision_of(plan: Mapping[str, Any]) -> str:
    """Return the key of ``BOUNDS`` for a run, from its plan.json."""
    return (
        "tf32"
        if plan.get("precision", {}).get("compute") == "tf32"
        else str(plan.get("mixed_precision", "no"))
    )


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The relative differences of a curve from another over the steps they share; NaN where a value
    is not a number.
    """

    first_step: int
    first: float
    mean: float
    largest_step: int
    largest: float


Curve = Mapping[int, float | None]
# Of what a nudged run does; another rounding may do somewhat more, and somewhat earlier.
NUDGE_FACTOR, NUDGE_AHEAD = 4.0, 2


class Sameness(Enum):
    """Whether a run is the same as another."""

    SAME = "same"
    ROUNDING = "rounding"
    UNKNOWN = "unknown"
    DIFFERS = "differs"


def judge(
    run: Run, reference: Run, keys: Sequence[str], bounds: Bounds, nudged: Sequence[Run]
) -> Sameness | None:
    """Hold the curves of a run against those of another: the one rule of ``parity`` and
    ``compare``.

    Every step within the strict bound is the same. A network that chooses (ReLU, max pooling,
    experts) may leave it by rounding alone: then the reference itself, started from weights that
    are nudged in their last place, says how far rounding leads it. What strays no further than
    ``NUDGE_FACTOR`` times that, at no step earlier than half way there, may be rounding; the first
    loss must be within its bound in any case.

    Args:
        keys: of the rows, such as ``loss``.
        nudged: runs of the reference from nudged weights; none where nobody made them.

    Returns:
        None where they share no step. UNKNOWN where it could be rounding, and there is no nudged
        run to tell.
    """
    apart = {key: relative_gaps(run.curve(key), reference.curve(key)) for key in keys}
    losses = apart["loss"]
    if not losses:
        return None
    if not losses[min(losses)] <= bounds.first:
        return Sameness.DIFFERS
    far = {
        key: {step: gap for step, gap in gaps.items() if not gap <= bounds.step}
        for key, gaps in apart.items()
    }
    if not any(far.values()):
        return Sameness.SAME
    if any(math.isnan(gap) for gaps in far.values() for gap in gaps.values()):
        return Sameness.DIFFERS
    if not nudged:
        mean = sum(losses.values()) / len(losses)
        return Sameness.UNKNOWN if mean <= bounds.mean else Sameness.DIFFERS
    for key, gaps in far.items():
        carried = [relative_gaps(one.curve(key), reference.curve(key)) for one in nudged]
        for step, gap in gaps.items():
            seen = [
                value for one in carried for at, value in one.items() if at <= NUDGE_AHEAD * step
            ]
            if not gap <= NUDGE_FACTOR * max(seen, default=0.0):
                return Sameness.DIFFERS
    return Sameness.ROUNDING


def relative_gaps(curve: Curve, reference: Curve) -> dict[int, float]:
    """Return the relative difference at each step that both have; NaN where a value was not a
    number.
    """
    steps = sorted(curve.keys() & reference.keys())
    return {step: _relative(curve[step], reference[step]) for step in steps}


def measure_gap(curve: Curve, reference: Curve) -> Gap | None:
    """Measure a curve against another; None where they share no step. A value of None was not a
    number.
    """
    apart = relative_gaps(curve, reference)
    if not apart:
        return None
    steps = list(apart)
    worst = max(steps, key=lambda step: math.inf if math.isnan(apart[step]) else apart[step])
    return Gap(
        first_step=steps[0],
        first=apart[steps[0]],
        mean=sum(apart.values()) / len(steps),
        largest_step=worst,
        largest=apart[worst],
    )


def _relative(value: float | None, reference: float | None) -> float:
    if value is None or reference is None:
        return math.nan
    return abs(value - reference) / max(abs(reference), 1e-12)
