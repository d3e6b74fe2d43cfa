"""Results as text: the tables of a page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trainer.reporting.machine import machine_text


def shown(found: Mapping[str, Any]) -> str:
    """Write the result of one table in Markdown, with how it was measured, and whether it is to be believed."""
    steps, packages = found["steps"], ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    rows = [
        f"| {one['name']} | {one['ratio']:.3f} | {one['interval'][0]:.3f} to {one['interval'][1]:.3f} "
        f"| {one['ms']:.3f} | {one['cpu_ratio']:.3f} | {one['apart']:.0e} |"
        for one in found["contenders"]
    ]
    return "\n".join(
        [
            f"**{found['title']}**",
            "",
            *(f"invalid: {problem}" for problem in found["problems"]),
            "| | time of a step | 95 % interval | ms a step | CPU time | weights apart |",
            "|---|---:|---:|---:|---:|---:|",
            *rows,
            "",
            f"`{found['command']}`, {found['date']}, {found['seconds']} s, {steps['rounds']} turns of {steps['block']} "
            f"steps; {machine_text(found['machine'])}, load {found['load_before']} before; {packages}.",
        ]
    )
