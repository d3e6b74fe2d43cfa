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
LOOPS = (BY_HAND, ACCELERATE, SAMECURVE)

TABLES = {
    "step": Table(
        title="Tiny MLP, one process",
        model="mlp",
        strategy="single",
        world=1,
        batch=8,
        block=50,
        rounds=100,
        bound=1e-2,
        contenders=LOOPS,
    ),
    "step2": Table(
        title="Tiny MLP, DDP on two processes",
        model="mlp",
        strategy="ddp",
        world=2,
        batch=8,
        block=50,
        rounds=60,
        bound=1e-2,
        contenders=LOOPS,
    ),
}
