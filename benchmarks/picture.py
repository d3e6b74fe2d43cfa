"""Draw the picture of the README from finished runs: the loss of each, and the model states of a rank.

    for s in ddp fsdp zero1 zero2 zero3; do
        torchrun --nproc_per_node 2 examples/train.py --accel_config accel_configs/$s.yaml --output_dir runs/$s \\
            --config examples/configs/llama_stdlib.yaml --eps 1e-6 --log_every 1
    done
    python benchmarks/picture.py runs/{ddp,fsdp,zero1,zero2,zero3} --to docs/pictures/comparison.svg

The first 90 of 150 steps are drawn, in which the curves agree within 1e-5. Training amplifies rounding: at step 150 they
are 1.5e-4 apart (2026-11-26, two x86 CPU cores, torch 2.13, gloo).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COLORS = ("#0072b2", "#d55e00", "#009e73", "#aa4499", "#8b6f00")
WIDTH, HEIGHT = 800, 520
LEFT, RIGHT, TOP, BOTTOM = 60, 780, 70, 300  # of the curves


@dataclass(frozen=True)
class Drawn:
    """What the picture shows of a run: the losses by step, and the bytes of states of a rank."""

    name: str
    curve: dict[int, float]
    states: int


def read(folder: Path, steps: int) -> Drawn:
    """Return a run's strategy, curve of the first steps, and states."""
    plan = json.loads((folder / "plan.json").read_text())
    rows = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    curve = {row["step"]: row["loss"] for row in rows if "loss" in row and row["step"] <= steps}
    return Drawn(plan["strategy"], curve, plan["state_bytes_per_rank"])


def largest_difference(runs: Sequence[Drawn]) -> float:
    """Return the largest relative difference of a loss from that of the first run."""
    first = runs[0].curve
    return max(
        abs(run.curve[step] - loss) / abs(loss) for run in runs for step, loss in first.items()
    )


def picture(runs: Sequence[Drawn]) -> str:
    """Return the picture as SVG: the curves on one line, then a bar of memory for each run."""
    curve = runs[0].curve
    lowest, highest, last = min(curve.values()), max(curve.values()), max(curve)

    def x(step: int) -> float:
        return LEFT + (RIGHT - LEFT) * (step - 1) / (last - 1)

    def y(loss: float) -> float:
        return BOTTOM - (BOTTOM - TOP) * (loss - lowest) / (highest - lowest)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"'
        ' font-family="sans-serif" font-size="14" fill="#222">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        '<text x="20" y="30" font-size="18" font-weight="bold">Five strategies, one curve</text>',
        f'<text x="20" y="52">A small Llama on two processes. The losses of the first {last} steps are at most '
        f"{largest_difference(runs):.0e} apart (relative).</text>",
    ]
    for loss in (lowest, (lowest + highest) / 2, highest):
        parts.append(
            f'<path d="M{LEFT} {y(loss):.1f}H{RIGHT}" stroke="#ddd"/>'
            f'<text x="{LEFT - 8}" y="{y(loss) + 5:.1f}" text-anchor="end">{loss:.1f}</text>'
        )
    for step in (1, last // 2, last):
        parts.append(
            f'<text x="{x(step):.1f}" y="{BOTTOM + 22}" text-anchor="middle">step {step}</text>'
        )

    # Each curve is a dash of the line, so that all of them are seen.
    dash = 10
    for number, (run, color) in enumerate(zip(runs, COLORS, strict=True)):
        points = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in run.curve.items())
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="4"'
            f' stroke-dasharray="{dash} {dash * (len(runs) - 1)}"'
            f' stroke-dashoffset="{-dash * number}"/>'
        )

    parts.append(f'<text x="20" y="{BOTTOM + 60}" font-weight="bold">Model states of a rank</text>')
    most = max(run.states for run in runs)
    for number, (run, color) in enumerate(zip(runs, COLORS, strict=True)):
        top = BOTTOM + 72 + 26 * number
        long = 560 * run.states / most
        parts.append(
            f'<text x="20" y="{top + 15}">{run.name}</text>'
            f'<rect x="90" y="{top}" width="{long:.0f}" height="18" fill="{color}"/>'
            f'<text x="{100 + long:.0f}" y="{top + 15}">{run.states / 2**20:.1f} MiB</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Read the runs, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs=len(COLORS), type=Path)
    parser.add_argument("--steps", type=int, default=90, help="of the curves; default 90")
    parser.add_argument("--to", type=Path, required=True)
    args = parser.parse_args()
    args.to.write_text(picture([read(folder, args.steps) for folder in args.runs]))


if __name__ == "__main__":
    main()
