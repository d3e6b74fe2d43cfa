"""What two GPUs answer: how ranks that are lost are named, and how a job ends.

    python -m benchmarks.gpu_pair --out $OUT/probes.jsonl
    python -m benchmarks.gpu_pair --out /tmp/probes.jsonl --rehearse     # over gloo, on a CPU

    ends        a job of two ranks trains to its end under DDP, FSDP2 and ZeRO-2: exit codes, and the
                lines of alarm that NCCL and torch print, behind the last line of the run too
    killed      rank 1 is killed in a step: seconds until a rank names it, and until all have ended
    stopped     rank 1 is stopped (SIGSTOP), so that rank 0 waits in a collective: the same
    stuck       rank 1 waits for ever in Python: seconds until the lines of the watch, and until the
                job ends by timeout_minutes, before NCCL's own time-out

The ranks are started as srun starts them, without a launcher that would name a rank. Each answer is
appended to the file as soon as it is there. Not run on a GPU yet. ``gpu_table`` has the rows of two
GPUs: zero2 beside overlap_comm, HSDP, gradients in bf16.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import gpu_jobs
from benchmarks.gpu_jobs import ROOT

PROBES = ("ends ddp", "ends fsdp", "ends zero2", "killed", "stopped", "stuck")
DOES = {"killed": "is killed", "stopped": "is stopped", "stuck": "waits for ever"}
# What a line says of the lost rank; and of ranks that stand still, of which no rank is at fault.
NAMES = {
    "killed": r"rank 1 \(process \d+ on .+\) is gone",
    "stopped": r"rank 1 \(process \d+ on .+\) is stopped",
    "stuck": r"no rank has moved for .*, the job goes on",
}
ENDS = r"no rank has moved for .*\(timeout_minutes\)"
# Of torch and NCCL: warnings and errors of C++, stacks, and groups that were left open.
ALARM = re.compile(
    r"^(\[rank\d+\]:)?\[[WE]\d{4}|^frame #\d+|C\+\+ CapturedTraceback|destroy_process_group", re.M
)
WORLD = 2


def command(strategy: str, folder: Path, *more: str) -> list[str]:
    """Return the command of a rank."""
    file = folder / f"{strategy}.yaml"
    file.write_text((ROOT / "accel_configs" / f"{strategy}.yaml").read_text())
    return [
        *(sys.executable, "-m", "trainer", "train", "--task", "tests.workers.hanging:Hanging"),
        *("--accel_config", str(file), "--output_dir", str(folder / "run")),
        *("--task_settings.width", "500", "--micro_batch_size", "4", "--warmup_steps", "0"),
        *("--log_every", "1", "--sanity_evaluation", "false", "--max_steps", "12", *more),
    ]


def answer(probe: str, folder: Path, limit: float, minutes: float) -> dict[str, Any]:
    """Run a job of two ranks, and return what was seen.

    Args:
        limit: seconds for the job.
        minutes: after which ranks that stand still end.
    """
    kind, _, strategy = probe.partition(" ")
    stamp = folder / "stamp"
    more: list[str] = []
    if kind in DOES:
        more = ["--task_settings.does", DOES[kind], "--task_settings.stamp", str(stamp)]
        more += ["--timeout_minutes", str(minutes)]
    words = command(strategy or "ddp", folder, *more)
    port = gpu_jobs.free_port()
    said = folder / "said"
    ranks = []
    with said.open("w") as output:
        for rank in range(WORLD):
            environment = {**os.environ, **gpu_jobs.variables_of(rank, WORLD, port)}
            ranks.append(
                subprocess.Popen(
                    words,
                    cwd=ROOT,
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    seen = watch(ranks, said, stamp, kind, limit)
    text = said.read_text(errors="replace")
    alarms = [line for line in text.splitlines() if ALARM.search(line)]
    behind = text.rpartition("model: ")[2]
    return {
        **seen,
        "codes": [rank.returncode for rank in ranks],
        "alarms": len(alarms),
        "alarms_behind_the_last_line": len(ALARM.findall(behind)) if "model: " in text else None,
        "alarm": alarms[0][:200] if alarms else "",
        **({} if "named" in seen or kind == "ends" else {"error": text[-2000:]}),
    }


def watch(
    ranks: Sequence[subprocess.Popen[bytes]], said: Path, stamp: Path, kind: str, limit: float
) -> dict[str, Any]:
    """Return the seconds from the fault until a line names it, and until all ranks have ended."""
    found: dict[str, Any] = {}
    deadline = time.monotonic() + limit
    try:
        while True:
            are_running = any(rank.poll() is None for rank in ranks)
            text = said.read_text(errors="replace")
            if stamp.exists():
                seconds = round(time.time() - stamp.stat().st_mtime, 1)
                if "named" not in found and re.search(NAMES[kind], text):
                    found["named"] = seconds
                if "ended" not in found and not are_running:
                    found["ended"] = seconds
                if kind == "stuck" and "timed_out" not in found and re.search(ENDS, text):
                    found["timed_out"] = seconds
            if not are_running:
                return found
            if time.monotonic() > deadline:
                return {**found, "not_ended": f"within {limit:.0f} s"}
            time.sleep(0.1)
    finally:
        gpu_jobs.end(ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", required=True, help="append each answer, as a line of JSON")
    parser.add_argument("--budget", type=float, default=520, help="seconds for all of them")
    parser.add_argument("--limit", type=float, default=240, help="seconds for one")
    parser.add_argument("--minutes", type=float, help="timeout_minutes of the jobs; default: 2")
    parser.add_argument("--rehearse", action="store_true", help="two processes, on the CPU")
    parser.add_argument("--only", nargs="+", default=PROBES, choices=PROBES, metavar="PROBE")
    args = parser.parse_args()

    gpus = gpu_jobs.prepare(rehearse=args.rehearse)
    if gpus < WORLD and not args.rehearse:
        raise SystemExit("this needs two GPUs; --rehearse runs its own code on a CPU")
    budget = gpu_jobs.Budget(args.budget)
    for probe, limit in budget.jobs(args.only, args.limit):
        began = budget.spent
        with tempfile.TemporaryDirectory() as folder:
            minutes = args.minutes or (0.4 if args.rehearse else 2.0)
            found = answer(probe, Path(folder), limit, minutes)
        row = {"probe": f"pair {probe}", **found, "seconds_in_all": round(budget.spent - began, 1)}
        gpu_jobs.append(Path(args.out), row)
        print(f"[{budget.spent:4.0f} s] {probe}: {json.dumps(found)}", flush=True)


if __name__ == "__main__":
    main()
