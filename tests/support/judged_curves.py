"""Curves of runs for the rule that decides whether two are the same."""

from __future__ import annotations

from trainer.commands.finished_runs import Run


def curve(name: str, *gaps: float, norms: tuple[float, ...] = ()) -> Run:
    """A run that is so far from the reference, relatively, at each step."""
    norms = norms or (0.0,) * len(gaps)
    rows = [
        {"step": at, "loss": 1 + gap, "grad_norm": 2 * (1 + norm)}
        for at, (gap, norm) in enumerate(zip(gaps, norms, strict=True), 1)
    ]
    return Run(name=name, path=name, plan={"precision": {"compute": "fp32"}}, rows=rows)


REFERENCE = curve("one process", *[0.0] * 8)


KINK = curve(
    "ddp", 0, 0, 1e-7, 0, 1e-5, 1e-4, 1e-3, 1e-2, norms=(0, 0, 0, 2e-4, 1e-5, 7e-4, 1e-3, 2e-2)
)


NUDGED = curve(
    "nudged",
    3e-7,
    1e-7,
    1e-6,
    1e-5,
    1e-4,
    3e-4,
    1e-3,
    5e-3,
    norms=(1e-6, 4e-6, 1e-4, 1e-3, 0, 0, 0, 1e-2),
)


STEADY = curve("nudged", *[1e-6] * 8, norms=(2e-6,) * 8)


BY_RANK = curve(
    "ddp", 0, 1e-4, 1e-3, 3e-3, 3e-3, 3e-3, 3e-3, 5e-3, norms=(2e-2,) * 8
)  # the gradient is wrong at once


FIRST = curve("ddp", *[2e-2] * 8)  # so is the loss


LOST = curve("ddp", 0, float("nan"), 0, 0, 0, 0, 0, 0)
