"""Faults in real jobs, and the seconds until the message names the rank.

    python benchmarks/faults.py [torchrun ddp killed step ...]

Starts two processes for each row through the real launcher, lets one of them have the fault
(``tests/workers/faults.py``), and compares the time of that with the one in the message. Without arguments all rows.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from launchers import command, run

ROWS = [
    ("torchrun", "ddp", "killed", "step"),
    ("torchrun", "ddp", "aborts", "step"),
    ("torchrun", "ddp", "exits", "step"),
    ("torchrun", "ddp", "vanishes", "step"),
    ("accelerate", "fsdp", "killed", "step"),
    ("accelerate", "zero1", "killed", "step"),
    ("deepspeed", "zero2", "killed", "step"),
    ("deepspeed", "zero3", "killed", "step"),
    ("accelerate", "fsdp", "killed", "evaluation"),
    ("deepspeed", "zero2", "killed", "save"),
    ("torchrun", "ddp", "killed", "save"),
    ("torchrun", "zero3", "killed", "evaluation"),
    ("torchrun", "ddp", "stopped", "step"),
    ("accelerate", "fsdp", "stopped", "save"),
    ("deepspeed", "zero1", "stopped", "evaluation"),
    ("torchrun", "ddp", "waits", "step"),
    ("torchrun", "zero3", "waits", "evaluation"),
    ("accelerate", "ddp", "loader", "data"),
    ("torchrun", "fsdp", "meets alone", "step"),
    ("torchrun", "fsdp", "raises", "step"),
    ("deepspeed", "zero2", "nan", "step"),
    ("accelerate", "zero3", "loader killed", "data"),
    ("torchrun", "zero1", "SIGTERM", "step"),
    ("accelerate", "ddp", "SIGTERM to the launcher", "step"),
]


def row(launcher: str, strategy: str, fault: str, at: str, folder: Path) -> str:
    stamp = folder / "stamp"
    settings = {"fault": fault, "at": at, "stamp": stamp}
    typed = [word for key, value in settings.items() for word in (f"--task_settings.{key}", str(value))]
    words = [
        *command(launcher, strategy), "--config", "examples/configs/digits_cnn.yaml", "--max_steps", "60",
        *(["--workers", "1"] if fault == "loader killed" else []),
        "--task", "tests.workers.faults:Faulty", "--save_every", "3", "--eval_every", "5", *typed,
    ]  # fmt: skip
    job = run(words, folder / "run", environment={"PYTHONFAULTHANDLER": ""})
    ended = time.time()
    began = float(stamp.read_text())
    said = re.search(r"(\d{4}-\S+ \S+) the job ends", job.err)
    named = f"{datetime.fromisoformat(said[1]).timestamp() - began:.1f} s" if said else "as it ended"
    text = re.search(r"^rank 1 ([^(:\n]*)", job.err, re.MULTILINE)
    told = text[1].strip() if text else ""
    return f"| {fault} | {at} | {strategy}, {launcher} | {named} | {ended - began:.1f} s | {told} |"


def main() -> None:
    words = sys.argv[1:]
    rows = [tuple(words[at : at + 4]) for at in range(0, len(words), 4)] or ROWS
    print("| rank 1 | in | | named after | job ended after | as |\n|---|---|---|---|---|---|", flush=True)
    for launcher, strategy, fault, at in rows:
        with tempfile.TemporaryDirectory() as folder:
            print(row(launcher, strategy, fault, at, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
