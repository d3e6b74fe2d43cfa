"""Which contenders stand in which table, the first of them being the reference, and where each one lives."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENTS = ROOT / "benchmarks" / "environments"


@dataclass(frozen=True, kw_only=True)
class Contender:
    """A function in ``contenders/``, and the environment that it runs in: "" for this one."""

    name: str
    place: str
    environment: str = ""

    def python(self) -> str:
        """Return the Python that it runs under; sets up an environment of its own from its pinned file, once."""
        if not self.environment:
            return sys.executable
        pinned, folder = ENVIRONMENTS / f"{self.environment}.txt", ROOT / "build" / self.environment
        installed, python = folder / pinned.name, str(folder / "bin" / "python")
        if not installed.exists() or installed.read_bytes() != pinned.read_bytes():
            print(f"setting up {folder.relative_to(ROOT)}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", pinned], check=True)
            shutil.copy(pinned, installed)
        return python

    def pins(self) -> list[tuple[str, str]]:
        """Return the package that its environment is there for, with its version."""
        if not self.environment:
            return []
        lines = (ENVIRONMENTS / f"{self.environment}.txt").read_text().splitlines()
        return [
            (self.environment, line.partition("==")[2]) for line in lines if line.startswith(f"{self.environment}==")
        ]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: the work of ``Work``, and who does it.

    Args:
        bound: how far weights may be from the reference's at the end, in parts of their way since the start.
    """

    title: str
    model: str
    strategy: str
    world: int
    batch: int
    block: int
    rounds: int
    bound: float
    contenders: tuple[Contender, ...]


BY_HAND = Contender(name="by hand", place="by_hand:train")
ACCELERATE = Contender(name="bare Accelerate", place="accelerate:train")
SAMECURVE = Contender(name="samecurve", place="samecurve:train")
FABRIC = Contender(name="Lightning Fabric", place="lightning:train_with_fabric", environment="lightning")
LIGHTNING = Contender(name="Lightning Trainer", place="lightning:train_with_trainer", environment="lightning")
TRANSFORMERS = Contender(name="transformers.Trainer", place="transformers:train")
DEEPSPEED = Contender(name="DeepSpeed engine", place="deepspeed:train")
LOOPS = (BY_HAND, FABRIC, SAMECURVE, ACCELERATE, LIGHTNING, TRANSFORMERS)


def mlp(title: str, strategy: str, world: int, rounds: int) -> Table:
    return Table(
        title=f"Tiny MLP (2,762 parameters), {title}",
        model="mlp",
        strategy=strategy,
        world=world,
        batch=8,
        block=50,
        rounds=rounds,
        bound=1e-2,
        contenders=LOOPS,
    )


def gpt(title: str, strategy: str, *contenders: Contender) -> Table:
    return Table(
        title=f"GPT (8.2 million parameters), {title}",
        model="gpt",
        strategy=strategy,
        world=2,
        batch=4,
        block=3,
        rounds=24,
        bound=1e-2,
        contenders=contenders,
    )


TABLES = {
    "step": mlp("one process", "single", 1, rounds=100),
    "step2": mlp("DDP on two processes", "ddp", 2, rounds=60),
    "gpt_ddp": gpt("DDP", "ddp", *LOOPS),
    "gpt_fsdp": gpt("FSDP2", "fsdp", BY_HAND, SAMECURVE),
    "gpt_zero1": gpt("ZeRO-1", "zero1", DEEPSPEED, SAMECURVE),
    "gpt_zero2": gpt("ZeRO-2", "zero2", DEEPSPEED, SAMECURVE),
    "gpt_zero3": gpt("ZeRO-3", "zero3", DEEPSPEED, SAMECURVE),
}
