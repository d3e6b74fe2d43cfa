"""Start trainings as a user would, and judge whether two runs are the same.

``trainer parity`` and ``trainer compare`` use both.
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

from ..config.naming import as_literal
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
        output: the run's folder.
        log: a new file for the command and all that the processes print.
    """

    name: str
    launch_file: str | None
    script: str | None
    arguments: Sequence[str]
    output: Path
    log: Path

    def run(self, *, verbose: bool = False) -> Run:
        """Train, wait for the end, and read the run back.

        Args:
            verbose: let the processes print to the terminal instead of the log.

        Returns:
            The run; with nothing but its last error, where the training failed.
        """
        print(f"{self.name} ...", flush=True)
        error = self._train(verbose)
        if error:  # what is in the folder may be of an earlier run
            return Run(name=self.name, path=str(self.output), error=error)
        return replace(read_run(self.output), name=self.name)

    def _train(self, verbose: bool) -> str:
        """Run the training; return its last error, an empty text where it succeeded."""
        words = self._command()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with open(self.log, "w+", encoding="utf-8") as log:
            log.write(shlex.join(words) + "\n")
            log.flush()
            output = None if verbose else log
            code = subprocess.run(words, stdout=output, stderr=output, check=False).returncode
            if code == 0:
                return ""

            log.seek(0)
            next(log)  # the command
            return last_error(log.read()) or f"exit code {code}"

    def _command(self) -> list[str]:
        words = [sys.executable]
        if self.launch_file is not None:
            words += ["-m", "accelerate.commands.launch", "--config_file", self.launch_file]
            words += ["--main_process_port", str(_free_port())]
        if self.script is not None:
            words.append(self.script)
        else:
            words += ["-m", "trainer", "train"]
        return [*words, *self.arguments, f"--output_dir={as_literal(str(self.output))}"]


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
        rule = "does not exist; give the script that calls trainer.main(), or leave --script out"
        raise usage_error("script", script, rule)


def last_error(log: str) -> str:
    """Find the line of a log that names the error; an empty text where there is none.

    It is torchrun's root cause, or what ends the last traceback, or what follows ``rank N:``, or
    else the last line.
    """
    _, root_cause, report = log.rpartition("Root Cause")
    if root_cause:
        cause = re.search(r"traceback : (.*)", report, re.DOTALL)
        if cause:
            log = cause[1]

    lines = [line.strip() for line in log.splitlines() if line.strip(" =-\t")]
    if not lines:
        return ""

    traceback = _last_traceback(lines)
    if traceback is not None:
        for line in traceback:
            if line.partition(":")[0].endswith(("Error", "Exception")):
                return line
        return lines[-1]
    if root_cause:
        return lines[0]

    for line in reversed(lines):
        # torchrun prints "rank : 0 (local_rank: 0)" of its own.
        if line.startswith("rank ") and ": " in line and "(local_rank" not in line:
            return line
    return lines[-1]


def _last_traceback(lines: Sequence[str]) -> Sequence[str] | None:
    """Return the lines after the heading of the last traceback; None where there is none."""
    for number in range(len(lines) - 1, -1, -1):
        if lines[number].endswith("Traceback (most recent call last):"):
            return lines[number + 1 :]

    return None


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
    dtypes = plan.get("precision", {})
    if dtypes.get("compute") == "tf32":
        return "tf32"
    precision = str(plan.get("mixed_precision", "no"))
    if precision == "no" and dtypes.get("reduction", "fp32") != "fp32":
        return str(dtypes["reduction"])  # gradients are rounded on their way
    return precision


@dataclass(frozen=True, kw_only=True)
class Gap:
    """The relative differences of a curve from another over the steps they share.

    NaN where a value was not finite.
    """

    first_step: int
    first: float
    mean: float
    largest_step: int
    largest: float


# Values by step; None where a value was not finite.
Curve = Mapping[int, float | None]

# A run may stray this many times as far as nudged runs do, and may do so when they did it at up to
# this many times its step: another rounding may do somewhat more, and somewhat earlier.
NUDGE_FACTOR = 4.0
NUDGE_AHEAD = 2


class Sameness(Enum):
    """Whether a run is the same as another."""

    SAME = "same"
    ROUNDING = "rounding"
    UNKNOWN = "unknown"
    DIFFERS = "differs"


def judge(
    run: Run, reference: Run, keys: Sequence[str], bounds: Bounds, nudged: Sequence[Run]
) -> Sameness | None:
    """Compare the curves of two runs, by the one rule of ``trainer parity`` and ``compare``.

    Every step within the strict bound is the same. A network that chooses (ReLU, max pooling,
    experts) may leave it by rounding alone: then the reference itself, started from weights that
    are nudged in their last place, shows how far rounding leads it. What strays no further than
    ``NUDGE_FACTOR`` times that, at no step earlier than half way there, may be rounding; the first
    loss must be within its bound in any case.

    Args:
        run: to be judged.
        reference: to compare with.
        keys: of the rows, such as ``loss``, which must be among them.
        bounds: up to which two runs are the same.
        nudged: runs of the reference from nudged weights; empty where there are none.

    Returns:
        None where they share no step. UNKNOWN where it could be rounding, and there is no nudged
        run to compare with.
    """
    gaps = {key: relative_gaps(run.curve(key), reference.curve(key)) for key in keys}
    losses = gaps["loss"]
    if not losses:
        return None
    first_loss = losses[min(losses)]
    if not first_loss <= bounds.first:  # NaN as well
        return Sameness.DIFFERS

    beyond = {key: _beyond(key_gaps, bounds.step) for key, key_gaps in gaps.items()}
    if not any(beyond.values()):
        return Sameness.SAME
    for key_gaps in beyond.values():
        if any(math.isnan(gap) for gap in key_gaps.values()):
            return Sameness.DIFFERS

    if not nudged:
        mean = sum(losses.values()) / len(losses)
        return Sameness.UNKNOWN if mean <= bounds.mean else Sameness.DIFFERS
    for key, key_gaps in beyond.items():
        nudged_gaps = [relative_gaps(other.curve(key), reference.curve(key)) for other in nudged]
        if not _may_be_rounding(key_gaps, nudged_gaps):
            return Sameness.DIFFERS
    return Sameness.ROUNDING


def _beyond(gaps: Mapping[int, float], bound: float) -> dict[int, float]:
    """Return the differences that are not within the bound, NaN among them."""
    return {step: gap for step, gap in gaps.items() if not gap <= bound}


def _may_be_rounding(gaps: Mapping[int, float], nudged: Sequence[Mapping[int, float]]) -> bool:
    """Return whether nudged runs stray about as far from the reference, at about the same step.

    Args:
        gaps: of the run, by step.
        nudged: those of each nudged run.
    """
    for step, gap in gaps.items():
        strayed = []
        for nudged_gaps in nudged:
            for nudged_step, nudged_gap in nudged_gaps.items():
                if nudged_step <= NUDGE_AHEAD * step:
                    strayed.append(nudged_gap)
        if not gap <= NUDGE_FACTOR * max(strayed, default=0.0):
            return False

    return True


def relative_gaps(curve: Curve, reference: Curve) -> dict[int, float]:
    """Return the relative difference at each step that both have; NaN where one was not finite."""
    steps = sorted(curve.keys() & reference.keys())
    return {step: _relative(curve[step], reference[step]) for step in steps}


def measure_gap(curve: Curve, reference: Curve) -> Gap | None:
    """Summarize the differences of a curve from another; return None where they share no step."""
    gaps = relative_gaps(curve, reference)
    if not gaps:
        return None

    first_step = min(gaps)
    worst_step = max(gaps, key=lambda step: math.inf if math.isnan(gaps[step]) else gaps[step])
    return Gap(
        first_step=first_step,
        first=gaps[first_step],
        mean=sum(gaps.values()) / len(gaps),
        largest_step=worst_step,
        largest=gaps[worst_step],
    )


def _relative(value: float | None, reference: float | None) -> float:
    if value is None or reference is None:
        return math.nan
    return abs(value - reference) / max(abs(reference), 1e-12)
