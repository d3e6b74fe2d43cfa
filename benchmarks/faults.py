"""Faults in real jobs, and the seconds until the message.

    python benchmarks/faults.py [torchrun ddp killed step ...]

Starts two processes for each row through the real launcher, lets one of them have the fault
(``tests/workers/faults.py``), and takes the time from there until the message is on the terminal,
and until the job has ended. Without arguments all rows.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from disks import small_disk
from launchers import ROOT, clean_environment, command

NAMED = r"^rank \d "  # by another rank
RAISED = "RuntimeError: the cat sat on the keyboard"
DISK = "^(rank 0: .* cannot be written|.*the checkpoint of step 6 was not saved)"
STOPPED = r"^stopped at step \d+ of \d+ \(SIGTERM\)"
ROWS = [
    ("torchrun", "ddp", "killed", "step", NAMED),
    ("torchrun", "ddp", "aborts", "step", NAMED),
    ("torchrun", "ddp", "exits", "step", NAMED),
    ("torchrun", "ddp", "vanishes", "step", NAMED),
    ("accelerate", "fsdp", "killed", "step", NAMED),
    ("accelerate", "zero1", "killed", "step", NAMED),
    ("deepspeed", "zero2", "killed", "step", NAMED),
    ("deepspeed", "zero3", "killed", "step", NAMED),
    ("accelerate", "fsdp", "killed", "evaluation", NAMED),
    ("torchrun", "zero3", "killed", "evaluation", NAMED),
    ("deepspeed", "zero2", "killed", "save", NAMED),
    ("torchrun", "ddp", "killed", "save", NAMED),
    ("torchrun", "zero3", "killed", "export", NAMED),
    ("torchrun", "ddp", "stopped", "step", NAMED),
    ("accelerate", "fsdp", "stopped", "save", NAMED),
    ("deepspeed", "zero1", "stopped", "evaluation", NAMED),
    ("torchrun", "ddp", "waits", "step", NAMED),
    ("torchrun", "zero3", "waits", "evaluation", NAMED),
    ("accelerate", "ddp", "loader", "data", NAMED),
    ("torchrun", "fsdp", "meets alone", "step", NAMED),
    ("torchrun", "fsdp", "raises", "step", RAISED),
    ("deepspeed", "zero2", "nan", "step", "the loss on rank 1 is nan"),
    ("accelerate", "zero3", "loader killed", "data", "is killed by signal: Killed"),
    ("torchrun", "zero1", "SIGTERM", "step", STOPPED),
    ("torchrun", "zero2", "SIGTERM, slowly", "evaluation", STOPPED),
    ("accelerate", "ddp", "SIGTERM to the launcher", "step", STOPPED),
    ("torchrun", "fsdp", "SIGTERM to all processes", "step", STOPPED),
    ("torchrun", "ddp", "fills the disk", "step", DISK),
    ("accelerate", "fsdp", "fills the disk", "save", DISK),
    ("torchrun", "fsdp", "fills the disk and waits", "step", NAMED),
    ("deepspeed", "zero3", "is read-only", "step", DISK),
]


def row(
    launcher: str,
    strategy: str,
    fault: str,
    at: str,
    message: str,
    folder: Path,
    inside: list[str],
    seen: Path,
) -> str:
    """Run a job in ``folder``, which is ``seen`` from here, and say when it told what."""
    settings = {
        "fault": fault,
        "at": at,
        "rank": "0" if at == "export" else "1",
        "stamp": folder / "stamp",
    }
    typed = [
        word for key, value in settings.items() for word in (f"--task_settings.{key}", str(value))
    ]
    words = [
        *command(launcher, strategy), "--config", "examples/configs/digits_cnn.yaml", "--warmup_steps", "0",
        "--task", "tests.workers.faults:Faulty", "--max_steps", "60" if fault.startswith("SIGTERM") else "12",
        *("--log_every", "1", "--save_every", "3", "--eval_every", "7", "--evaluation_batch_size", "4"),
        *("--sanity_evaluation", "false"),
        *(["--workers", "1"] if fault in ("loader killed", "SIGTERM to all processes") else []),
        *typed, "--output_dir", str(folder / "run"),
    ]  # fmt: skip
    told, text = 0.0, "nothing"
    environment = clean_environment({"PYTHONFAULTHANDLER": ""})  # it would take crashes to stderr
    with subprocess.Popen(
        [*inside, *words],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        assert job.stdout is not None
        for line in job.stdout:
            if not told and re.search(message, line):
                told, text = time.time(), line.strip()
    ended, began = time.time(), float((seen / "stamp").read_text())
    when = f"{told - began:.1f} s" if told else "never"
    return f"| {fault} | {at} | {strategy}, {launcher} | {when} | {ended - began:.1f} s | {job.returncode} | {text[:90]} |"


def main() -> None:
    words = sys.argv[1:]
    asked = [tuple(words[at : at + 4]) for at in range(0, len(words), 4)]
    print(
        "| rank 1 | in | | told after | job ended after | code | as |\n|---|---|---|---|---|---|---|",
        flush=True,
    )
    for launcher, strategy, fault, at, message in ROWS:
        if asked and (launcher, strategy, fault, at) not in asked:
            continue
        with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
            inside: list[str] = []
            folder = seen = Path(place)
            if "disk" in fault or fault == "is read-only":
                inside, seen = stack.enter_context(small_disk(folder := folder / "disk"))
            print(row(launcher, strategy, fault, at, message, folder, inside, seen), flush=True)


if __name__ == "__main__":
    main()
