"""The same global batch under every strategy, world size and accumulation: the loss curves side by
side.

    python benchmarks/curves.py --to benchmarks/results/curves.md

takes some ten minutes on two cores. Each strategy and world size is one job of torchrun, which
trains every task with every accumulation one after the other; started with ``--worker`` this file
is that job.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))

BATCH, STEPS, ACCUMULATIONS = 32, 50, (1, 4)
SHOWN = (1, 10, 25, 50)
LAYOUTS = (
    ("single", 1), ("ddp", 2), ("ddp", 4), ("fsdp", 1), ("fsdp", 2), ("fsdp", 4),
    *((f"zero{stage}", world) for stage in (1, 2, 3) for world in (1, 2, 4)),
)  # fmt: skip
REFERENCE = ("single", 1, 1)
SMALL_LLAMA = {"max_bytes": 200_000, "vocab_size": 512, "sequence_length": 32, "hidden_size": 64}
SMALL_LLAMA |= {"intermediate_size": 172}
# 1,437 digits: step 45 of 50 is the short end of the first epoch.
TASKS: dict[str, dict[str, Any]] = {
    "CNN, SGD with momentum": {"task": "smooth_cnn:SmoothCNN", "optimizer": "sgd", "lr": 0.05},
    "CNN, AdamW": {"task": "smooth_cnn:SmoothCNN", "optimizer": "adamw", "lr": 3e-3},
    "Llama, AdamW, eps 1e-6": {
        "task": "llama_stdlib:LlamaStdlib",
        "task_settings": SMALL_LLAMA,
        "optimizer": "adamw",
        "eps": 1e-6,
        "lr": 3e-3,
    },
}
# Relative differences of loss and gradient norm that are put down to float32: sums in another order
# differ by 1e-7 at the first step; in fifty steps training amplifies that some ten times. It holds
# for networks without kinks (see smooth_cnn.py), and for Adam where its eps is above
# the rounding of the gradients (see the page).
FIRST_STEP, BOUND = 1e-6, 1e-5

Curves = dict[str, dict[str, list[float]]]  # task and accumulation -> losses, norms


def run_layout(
    strategy: str,
    world: int,
    folder: Path,
    *,
    steps: int = STEPS,
    accumulations: Sequence[int] = ACCUMULATIONS,
) -> Curves:
    """Train every task under one strategy and world size.

    Raises:
        RuntimeError: the job failed; with the end of what it printed.
    """
    place = folder / f"{strategy}-{world}"
    place.mkdir(parents=True)
    text = (ROOT / "accel_configs" / f"{strategy}.yaml").read_text()
    (place / "accel.yaml").write_text(text.replace("num_processes: 2", f"num_processes: {world}"))
    words = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node",
        str(world),
    ]
    words += [
        __file__,
        "--worker",
        str(place),
        "--steps",
        str(steps),
        "--accumulations",
        *map(str, accumulations),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(
            f"{strategy} on {world}: exit code {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-5000:]}"
        )
    return dict(json.loads((place / "curves.json").read_text()))


def worker(place: Path, steps: int, accumulations: Sequence[int]) -> None:
    """One job: all tasks and accumulations under the strategy of ``place``'s accelerate YAML."""
    curves: Curves = {}
    for name in TASKS:
        for accumulation in accumulations:
            curves[f"{name}, {accumulation}"] = train(name, accumulation, place, steps)
    if os.environ["RANK"] == "0":
        (place / "curves.json").write_text(json.dumps(curves))


def train(name: str, accumulation: int, place: Path, steps: int) -> dict[str, list[float]]:
    from llama_stdlib import LlamaStdlib
    from smooth_cnn import SmoothCNN

    from trainer import TrainConfig, Trainer, launch

    settings = TASKS[name]
    kinds = {"smooth_cnn:SmoothCNN": SmoothCNN, "llama_stdlib:LlamaStdlib": LlamaStdlib}
    config = TrainConfig(
        **settings,
        output_dir=str(place / "run"),
        overwrite=True,
        max_steps=steps,
        micro_batch_size=BATCH // accumulation // int(os.environ["WORLD_SIZE"]),
        global_batch_size=BATCH,
        log_every=1,
    )
    running = Trainer(
        kinds[settings["task"]](**settings.get("task_settings", {})),
        config,
        launch(config, accel_config=str(place / "accel.yaml")),
    )
    rows = [info.metrics for info in running.steps()]
    running.run.agreement.close()
    running.run.close()
    return {
        "loss": [row["loss"] for row in rows if row],
        "norm": [row["grad_norm"] for row in rows if row],
    }


def difference(curve: Sequence[float], reference: Sequence[float]) -> list[float]:
    """Relative difference at each step."""
    return [abs(a - b) / abs(b) for a, b in zip(curve, reference, strict=True)]


def page(found: Mapping[tuple[str, int], Curves], command: str, machine: str) -> str:
    """The tables as Markdown."""
    strategy, world, accumulation = REFERENCE
    lines = [
        "# The same curve under every strategy",
        "",
        f"The loss of the global batch ({BATCH} samples a step, seed 0) in float32, and the largest relative",
        "difference from one process without accumulation. Rounding is all that differs: sums are taken in another",
        "order, some 1e-7 at the first step, and training amplifies it. The tests hold the first step to",
        f"{FIRST_STEP:g} and whole curves to {BOUND:g} (`tests/jobs/test_same_curve.py`).",
        "",
        "The CNN is that of the example with SiLU and mean pooling. ReLU and max pooling choose: where two values",
        "are as close as a rounding, 1e-7 takes the other branch, and the gradient of that sample jumps. One process",
        "does it as well, from weights changed in their last place: `trainer parity` trains that beside the others.",
        "Curves of a network with kinks agree to rounding up to the first jump, and carry the jump from there on.",
        "",
        "Adam chooses as well: with its usual eps of 1e-8 it gives a gradient of 1e-8, mostly rounding, nearly the",
        "step of a large one, by its sign. The Llama hardly learns words that are not in the batch and has many",
        "such gradients; with eps 1e-6 its gradient norms are 5e-7 apart after twelve steps, with 1e-8 8e-5 (measured",
        "on the standard library of Python 3.11.2).",
        "",
        "For a task of yours, on the machine at hand, the same comparison is one command:",
        "`trainer parity accel_configs/ddp.yaml accel_configs/fsdp.yaml --config train.yaml --steps 10`.",
        "",
        f"`{command}`, {datetime.date.today()}, {machine}.",
    ]
    for name in TASKS:
        reference = found[strategy, world][f"{name}, {accumulation}"]["loss"]
        worst = 0.0
        rows = []
        for (strategy_, world_), curves in found.items():
            for steps in ACCUMULATIONS:
                losses = curves[f"{name}, {steps}"]["loss"]
                off = difference(losses, reference)
                worst = max(worst, *off)
                shown = " | ".join(f"{losses[step - 1]:.7f}" for step in SHOWN)
                rows.append(
                    f"| {strategy_} | {world_} | {steps} | {shown} | {off[0]:.1e} | {max(off):.1e} |"
                )
        heads = " | ".join(f"step {step}" for step in SHOWN)
        lines += [
            "",
            f"## {name}",
            f"Largest difference: {worst:.1e}.",
            "",
            f"| strategy | processes | accumulation | {heads} | first step differs | largest difference |",
            "|---|---|---|" + "---|" * (len(SHOWN) + 2),
            *rows,
        ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, help="write the page there; else it is printed")
    parser.add_argument("--machine", default="two x86 CPU cores, torch 2.13, gloo")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--accumulations", type=int, nargs="+", default=list(ACCUMULATIONS))
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        import trainer

        trainer.run_and_exit(
            lambda: worker(arguments.worker, arguments.steps, arguments.accumulations)
        )
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for strategy, world in LAYOUTS:
            print(f"{strategy} on {world} ...", file=sys.stderr, flush=True)
            found[strategy, world] = run_layout(strategy, world, Path(folder))
    words = "python benchmarks/curves.py" + (f" --to {arguments.to}" if arguments.to else "")
    text = page(found, words, arguments.machine)
    if arguments.to:
        arguments.to.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
