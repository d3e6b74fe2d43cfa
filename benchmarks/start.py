"""What starting costs: from the launch to the end of the first step, beside a script by hand under the same launcher.

    python benchmarks/start.py [--rounds 9] [--launchers python torchrun accelerate]

Both train the digits CNN with AdamW, clipping and a schedule, on one process, and on two under DDP over gloo. They run
in turn, ours or the other first by chance; each says when it begins its second step. Printed are the seconds of the
script by hand, and what ours needs more: the median of the pairs' differences, with the quarter below and above, also
in CPU seconds of the first process, which what else runs on the machine changes less. The
last line gives what ``import trainer`` takes beyond torch, the help and a refused config.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "examples"))
CONFIG = ROOT / "examples" / "configs" / "digits_cnn.yaml"
SCRIPT = str(Path(__file__).resolve())


def by_hand() -> None:
    """Train as one would without a framework."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from digits_cnn import DigitsCNN
    from torch.nn.parallel import DistributedDataParallel
    from torch.utils.data import DataLoader, DistributedSampler

    several = "WORLD_SIZE" in os.environ
    if several:
        dist.init_process_group("gloo")
    task = DigitsCNN()
    train, model = task.build_data().train, task.build_model()
    if several:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 345)
    loader: Any = DataLoader(train, 32, sampler=DistributedSampler(train)) if several else DataLoader(train, 64)
    for number, batch in enumerate(loader):
        if number == 1:
            arrived()
            break
        loss = F.cross_entropy(model(batch["image"]), batch["label"])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        print(loss.item(), flush=True)
    if several:
        dist.destroy_process_group()


def arrived() -> None:
    """Say once, on the first process, that the first step is done."""
    if os.environ.get("RANK", "0") == "0":
        text = f"\narrived {time.time():.6f} {time.process_time():.6f} {len(sys.modules)}\n"
        os.write(1, text.encode())  # at once: two processes write there


def launched(launcher: str) -> list[str]:
    folder = Path(sys.executable).parent
    return {
        "python": [sys.executable],
        "torchrun": [str(folder / "torchrun"), "--nproc_per_node", "2"],
        "accelerate": [str(folder / "accelerate"), "launch", "--config_file", str(ROOT / "accel_configs" / "ddp.yaml")],
    }[launcher]


def start_of(command: list[str]) -> tuple[float, float, int]:
    """Run a command; return seconds, and of its first process those of the CPU and the modules, to the step's end."""
    began = time.time()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("arrived "):
            ended, computed, modules = line.split()[1:]
            return float(ended) - began, float(computed), int(modules)
    raise SystemExit(f"{' '.join(command)}\n{done.stdout}\n{done.stderr}")


def to_end(*words: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, check=False)
    return time.perf_counter() - began


def middle(values: Sequence[float]) -> str:
    low, half, high = statistics.quantiles(values, n=4)
    return f"{half:.2f} ({low:.2f} to {high:.2f})"


def compare(launcher: str, rounds: int) -> None:
    """Print what ours needs beyond the script by hand under a launcher."""
    place = tempfile.mkdtemp()
    files = ["--accel_config", "accel_configs/ddp.yaml"] if launcher == "torchrun" else []
    settings = [*files, "--config", str(CONFIG), "--task", "start:Timed", "--max_steps", "2", "--log_every", "1"]
    commands = {
        "hand": [*launched(launcher), SCRIPT, "--child", "hand"],
        "ours": [
            *launched(launcher),
            SCRIPT,
            "--child",
            "ours",
            *settings,
            "--output_dir",
            f"{place}/run",
            "--overwrite",
        ],
    }
    pairs = []
    for _ in range(rounds + 1):
        found = {name: start_of(commands[name]) for name in random.sample([*commands], k=2)}
        pairs.append((*found["hand"], *(ours - hand for ours, hand in zip(found["ours"], found["hand"], strict=True))))
    shutil.rmtree(place)
    seconds, computed, modules, *more = zip(*pairs[1:], strict=True)  # the first pair fills the disk's cache
    print(
        f"{launcher:<11} by hand {middle(seconds)} s, {middle(computed)} s of the CPU, {modules[0]} modules; "
        f"ours more by {middle(more[0])} s, {middle(more[1])} s of the CPU, {more[2][0]} modules",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--launchers", nargs="+", default=["python", "torchrun", "accelerate"])
    args = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["PYTHONPATH"] = str(ROOT)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody compiles a package anew at every start
    for launcher in args.launchers:
        compare(launcher, args.rounds)
    quick: dict[str, list[float]] = {"import": [], "help": [], "refused": []}
    for number in range(args.rounds + 1):
        torch = to_end("-c", "import torch")
        times = {
            "import": to_end("-c", "import torch, trainer") - torch,
            "help": to_end("-m", "trainer", "--help"),
            "refused": to_end("examples/train.py", "--config", str(CONFIG), "--max_stepps", "3"),
        }
        for name in quick if number else ():
            quick[name].append(times[name])
    print(
        "import trainer beyond torch {import} s; --help {help} s; a refused config {refused} s".format(
            **{name: middle(values) for name, values in quick.items()}
        )
    )


if "--child" in sys.argv:
    at = sys.argv.index("--child")
    how = sys.argv[at + 1]
    del sys.argv[at : at + 2]
    if how == "hand":
        by_hand()
    else:
        import trainer

        trainer.main()
elif __name__ == "__main__":
    main()
else:
    from digits_cnn import DigitsCNN

    steps = 0

    @dataclass(frozen=True, kw_only=True)
    class Timed(DigitsCNN):
        """The digits; says when the second step begins."""

        def training_step(self, model: Any, batch: Any) -> Any:
            global steps
            steps += 1
            if steps == 2:
                arrived()
            return super().training_step(model, batch)
