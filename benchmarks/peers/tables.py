"""Which contenders stand in which table, the first of them being the reference, and where each one
lives.
"""

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
        """Return the Python that it runs under; sets up an environment of its own from its pinned
        file, once.
        """
        if not self.environment:
            return sys.executable
        pinned, folder = ENVIRONMENTS / f"{self.environment}.txt", ROOT / "build" / self.environment
        installed, python = folder / pinned.name, str(folder / "bin" / "python")
        if not installed.exists() or installed.read_bytes() != pinned.read_bytes():
            print(f"setting up {folder.relative_to(ROOT)}", flush=True)
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            subprocess.run(
                [python, "-m", "pip", "install", "--quiet", "--no-deps", "-r", pinned], check=True
            )
            shutil.copy(pinned, installed)
        return python

    def pins(self) -> list[tuple[str, str]]:
        """Return the package that its environment is there for, with its version."""
        if not self.environment:
            return []
        lines = (ENVIRONMENTS / f"{self.environment}.txt").read_text().splitlines()
        return [
            (self.environment, line.partition("==")[2])
            for line in lines
            if line.startswith(f"{self.environment}==")
        ]


@dataclass(frozen=True, kw_only=True)
class Table:
    """A table: the work, in the words of ``Work``, and who does it; the first is the reference.

    Args:
        target: the ratio of times at which samecurve should be at most.
        tokens: of one sample, where they are counted.
    """

    title: str
    model: str
    strategy: str
    world: int
    batch: int
    block: int
    rounds: int
    target: float
    contenders: tuple[Contender, ...]
    tokens: int = 0


BY_HAND = Contender(name="by hand", place="by_hand:train")
ACCELERATE = Contender(name="bare Accelerate", place="accelerate:train")
SAMECURVE = Contender(name="samecurve", place="samecurve:train")
FABRIC = Contender(
    name="Lightning Fabric", place="lightning:train_with_fabric", environment="lightning"
)
LIGHTNING = Contender(
    name="Lightning Trainer", place="lightning:train_with_trainer", environment="lightning"
)
TRANSFORMERS = Contender(name="transformers.Trainer", place="transformers:train")
DEEPSPEED = Contender(name="DeepSpeed engine", place="deepspeed:train")
TRANSFORMERS_LLAMA = Contender(name="transformers.Trainer", place="transformers:train_llama")
SAMECURVE_LLAMA = Contender(name="samecurve", place="samecurve:train_llama")
LOOPS = (BY_HAND, FABRIC, SAMECURVE, ACCELERATE, LIGHTNING, TRANSFORMERS)


def mlp(title: str, strategy: str, world: int, rounds: int, target: float) -> Table:
    return Table(
        title=f"Tiny MLP (2,762 parameters), {title}",
        model="mlp",
        strategy=strategy,
        world=world,
        batch=8,
        block=50,
        rounds=rounds,
        target=target,
        contenders=LOOPS,
    )


def two(
    model: str, strategy: str, *contenders: Contender, block: int, rounds: int, target: float
) -> Table:
    names = {"ddp": "DDP", "fsdp": "FSDP2", "zero1": "ZeRO-1", "zero2": "ZeRO-2", "zero3": "ZeRO-3"}
    titles = {"gpt": "GPT (8.2 million parameters)", "llama": "Llama (8.4 million parameters)"}
    return Table(
        title=f"{titles[model]}, {names[strategy]} on two processes",
        model=model,
        strategy=strategy,
        world=2,
        batch=4,
        block=block,
        rounds=rounds,
        target=target,
        contenders=contenders,
        tokens={"gpt": 32, "llama": 128}[model],
    )


def gpt(strategy: str, *contenders: Contender) -> Table:
    return two(
        "gpt", strategy, *contenders, block=3, rounds=60, target=1.0 if strategy == "ddp" else 1.01
    )


def llama(strategy: str) -> Table:
    return two(
        "llama", strategy, TRANSFORMERS_LLAMA, SAMECURVE_LLAMA, block=2, rounds=60, target=1.0
    )


TABLES = {
    "step": mlp("one process", "single", 1, rounds=300, target=1.08),
    "step2": mlp("DDP on two processes", "ddp", 2, rounds=150, target=1.05),
    "gpt_ddp": gpt("ddp", *LOOPS),
    "gpt_fsdp": gpt("fsdp", BY_HAND, SAMECURVE),
    **{f"gpt_{stage}": gpt(stage, DEEPSPEED, SAMECURVE) for stage in ("zero1", "zero2", "zero3")},
    **{f"llama_{strategy}": llama(strategy) for strategy in ("ddp", "fsdp", "zero2", "zero3")},
}
