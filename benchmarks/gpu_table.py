"""A table in minutes: time, MFU, memory and losses of each strategy, beside a loop by hand.

    python -m benchmarks.gpu_table --out $OUT/table.jsonl                 # most wanted rows first
    python -m benchmarks.gpu_table --out /tmp/table.jsonl --rehearse      # its own code, on a CPU
    python -m benchmarks.gpu_table --show $OUT/table.jsonl                # the table again

Each row is a job of its own with a time limit of its own, and is appended to the file as soon as it
is there: whatever ends this command loses one row at most. A row that fails is written with its
error, and the next one starts. All rows of a model train the same way (``gpu_speed.py``) from the
same weights on the same rows, so their losses are compared with those of the loop by hand.

    hand      a plain PyTorch loop; torch's DDP around it where there are several processes
    single    samecurve, one process
    ddp       samecurve under DDP; in one process the plain loop in torch's wrapper, for samecurve
              runs one process without it
    fsdp, zero1, zero2, zero3
              samecurve under the committed launch file; one process shards nothing, but pays for
              all of the strategy's own work
    trainer   transformers.Trainer

Not run on a GPU yet.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
LOOPS = ("hand", "single", "ddp", "fsdp", "zero1", "zero2", "zero3")
WARM, TIMED = 5, 20
SHORTEST = 15.0  # seconds that a row needs at least: less is left to nobody
GIB = 2**30


class Case(NamedTuple):
    """What a row measures."""

    model: str
    loop: str
    compiled: bool

    def __str__(self) -> str:
        return f"{self.model} {self.loop}{' compiled' if self.compiled else ''}"


def cases(models: Sequence[str], loops: Sequence[str], compiled: Sequence[bool]) -> list[Case]:
    """Return the rows, most wanted first."""
    found = []
    for is_compiled in compiled:
        for model in models:
            found += [Case(model, loop, is_compiled) for loop in loops]
    return found


# -- the process of a row -------------------------------------------------------------------------


def measure(case: Case, processes: int, warm: int, timed: int) -> dict[str, Any]:
    """Train, and return what it cost. Collective: call on every rank."""
    import torch
    import torch.distributed as dist

    from benchmarks import gpu_speed

    missing = gpu_speed.missing_memory(case.model)
    if missing:
        return {"error": missing}

    task, clock = gpu_speed.Llama(name=case.model), gpu_speed.Clock(warm, timed)
    by_hand = case.loop == "hand" or (case.loop == "ddp" and processes == 1)
    if by_hand:
        if "RANK" in os.environ:
            gpu_speed.connect()
        gpu_speed.by_hand(task, case.compiled, clock, wrapped=case.loop == "ddp")
    elif case.loop == "trainer":
        gpu_speed.transformers_trainer(task, case.compiled, clock)
    else:
        gpu_speed.ours(task, case.compiled, clock, files=launch_file(case.loop, processes))

    losses = []
    if clock.losses:
        together = torch.stack(clock.losses)
        if processes > 1:
            dist.all_reduce(together)  # samecurve reports a rank's part of the mean
            if by_hand:
                together /= processes
        losses = together.tolist()
    tokens = gpu_speed.MODELS[case.model].tokens
    return {
        "ms": 1e3 * clock.each,
        "host_ms": 1e3 * clock.host,
        "tokens_per_second": tokens * processes / clock.each,
        "mfu": utilization(task.operations() / clock.each),
        "allocated_gib": clock.allocated / GIB,
        "reserved_gib": clock.reserved / GIB,
        "losses": losses,
        "processes": processes,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def launch_file(loop: str, processes: int) -> dict[str, str]:
    """Write the committed launch file for as many processes, and return it as an argument."""
    if loop == "single":
        return {}
    text = (ROOT / "accel_configs" / f"{loop}.yaml").read_text()
    path = Path(tempfile.mkdtemp()) / f"{loop}.yaml"
    path.write_text(text.replace("num_processes: 2", f"num_processes: {processes}"))
    return {"accel_config": str(path)}


def utilization(operations_per_second: float) -> float | None:
    """Return the share of the GPU's peak in bf16; None where none is known."""
    import torch

    from trainer.reporting.gpus import peak_of

    if not torch.cuda.is_available():
        return None
    device = torch.cuda.get_device_properties(torch.cuda.current_device())
    peak = peak_of(device.name, device.total_memory, "bf16")
    return operations_per_second / (peak * 1e12) if peak else None


def be_row(args: argparse.Namespace) -> None:
    """Measure the row of this process; rank 0 writes it."""
    case = Case(*json.loads(args.row))
    found = measure(case, args.processes, args.warm, args.timed)
    if os.environ.get("RANK", "0") == "0":
        Path(args.out).write_text(json.dumps(found))


# -- the process that starts the rows -------------------------------------------------------------


def run_row(case: Case, args: argparse.Namespace, limit: float) -> dict[str, Any]:
    """Start the processes of a row, wait, and return what it measured, or its error."""
    with tempfile.TemporaryDirectory() as folder:
        result, said = Path(folder) / "row.json", Path(folder) / "said"
        words = [
            *(sys.executable, "-m", "benchmarks.gpu_table", "--row", json.dumps(case)),
            *("--out", str(result), "--processes", str(args.processes)),
            *("--warm", str(args.warm), "--timed", str(args.timed)),
        ]
        alone = args.processes == 1 and case.loop in ("hand", "single", "trainer")
        port = free_port()
        jobs = []
        with said.open("w") as output:
            for rank in range(args.processes):
                environment = {**os.environ, **(variables_of(rank, args.processes, port))}
                job = subprocess.Popen(
                    words,
                    cwd=ROOT,
                    env=dict(os.environ) if alone else environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
                jobs.append(job)

        ended = wait(jobs, limit)
        if result.exists():
            return dict(json.loads(result.read_text()))
        return {"error": f"{ended}: {said.read_text(errors='replace')[-3000:].strip()}"}


def wait(jobs: Sequence[subprocess.Popen[bytes]], limit: float) -> str:
    """Wait for all processes, and return how they ended. One that failed ends the others."""
    deadline = time.monotonic() + limit
    try:
        while True:
            codes = [job.poll() for job in jobs]
            failed = [code for code in codes if code]
            if failed:
                return f"exit code {failed[0]}"
            if None not in codes:
                return "ended without a result"
            if time.monotonic() > deadline:
                return f"no result after {limit:.0f} s"
            time.sleep(0.05)
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)  # its own group: what it started ends as well
                job.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def variables_of(rank: int, world: int, port: int) -> dict[str, str]:
    """Return what a launcher sets for a rank."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def run_all(wanted: Sequence[Case], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure row by row until the budget is spent, and append each to the file."""
    began = time.monotonic()
    rows: list[dict[str, Any]] = []
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    for number, case in enumerate(wanted):
        left = args.budget - (time.monotonic() - began)
        if left < SHORTEST:
            print(f"not run, the time is spent: {', '.join(map(str, wanted[number:]))}")
            break

        row_began = time.monotonic()
        row = {**case._asdict(), **run_row(case, args, min(left, args.limit))}
        row["seconds"] = round(time.monotonic() - row_began, 1)
        row["furthest_loss"] = furthest_loss(row, rows)
        rows.append(row)
        with out.open("a") as file:
            file.write(json.dumps(row) + "\n")

        outcome = last_line(row["error"]) if "error" in row else f"{row['ms']:.2f} ms a step"
        print(f"[{time.monotonic() - began:4.0f} s] {case}: {outcome}", flush=True)
    return rows


def furthest_loss(row: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the largest relative difference of a step's loss from the loop by hand."""
    for other in before:
        same = all(other[key] == row[key] for key in ("model", "compiled"))
        if same and other["loop"] == "hand" and other.get("losses") and row.get("losses"):
            pairs = zip(row["losses"], other["losses"], strict=True)
            return max(abs(loss - by_hand) / abs(by_hand) for loss, by_hand in pairs)
    return None


def last_line(text: str) -> str:
    """Return the line of an error's output that most likely says what was wrong."""
    return text.strip().splitlines()[-1]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table in Markdown, and the errors below it."""
    hand = {}
    for row in rows:
        if row["loop"] == "hand" and "ms" in row:
            hand[row["model"], row["compiled"]] = row["ms"]

    lines = [
        "| model | loop | compiled | ms | host ms | of hand | tokens/s | MFU | allocated | reserved | losses |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    errors = []
    for row in rows:
        name = f"{row['model']} | {row['loop']} | {'yes' if row['compiled'] else 'no'}"
        if "ms" not in row:
            errors.append(f"- {name}: {last_line(row['error'])}")
            continue
        by_hand = hand.get((row["model"], row["compiled"]))
        cells = [
            name,
            f"{row['ms']:.2f}",
            f"{row['host_ms']:.2f}",
            f"{row['ms'] / by_hand:.3f}" if by_hand else "",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['mfu']:.1%}" if row["mfu"] else "",
            f"{row['allocated_gib']:.2f}",
            f"{row['reserved_gib']:.2f}",
            f"{row['furthest_loss']:.1e}" if row["furthest_loss"] is not None else "",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, *errors])


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def processes_here(rehearse: bool) -> int:
    """Return the processes of a row: one for each GPU, asked for in a process of its own."""
    if rehearse:
        return 1
    asked = [sys.executable, "-c", "import torch; print(torch.cuda.device_count())"]
    count = int(subprocess.run(asked, capture_output=True, text=True, check=True).stdout)
    if count == 0:
        raise SystemExit("gpu_table needs a GPU; --rehearse runs its own code on a CPU")
    return count


def settings_of_rows(rehearse: bool) -> dict[str, str]:
    """Return the variables that all rows are started with."""
    settings = {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        # So that a row finds what the one before has compiled.
        "TORCHINDUCTOR_CACHE_DIR": str(Path(tempfile.gettempdir()) / "gpu_table_inductor"),
    }
    if rehearse:
        settings |= {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"}
    return settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", help="append each row to this file, as a line of JSON")
    parser.add_argument("--show", help="print the table of such a file, and measure nothing")
    parser.add_argument("--budget", type=float, default=465, help="seconds for all rows")
    parser.add_argument("--limit", type=float, default=100, help="seconds for a row")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument("--loops", nargs="+", default=LOOPS, choices=[*LOOPS, "trainer"])
    parser.add_argument("--models", nargs="+", help="default: 124M 1B")
    parser.add_argument("--compiled", choices=["yes", "no", "both"], default="both")
    parser.add_argument("--processes", type=int, help="of a row; default: one for each GPU")
    parser.add_argument("--warm", type=int, default=WARM, help=argparse.SUPPRESS)
    parser.add_argument("--timed", type=int, default=TIMED, help=argparse.SUPPRESS)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row is not None:
        import trainer

        trainer.run_and_exit(lambda: be_row(args))
    if args.show:
        print(table(read(Path(args.show))))
        return
    if args.out is None:
        parser.error("--out FILE is missing")

    # Whoever ends this process ends the row that runs: `timeout` does so by SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    os.environ.update(settings_of_rows(args.rehearse))
    if args.processes is None:
        args.processes = processes_here(args.rehearse)
    loops = [loop for loop in args.loops if loop != "single" or args.processes == 1]
    models = args.models or (["tiny"] if args.rehearse else ["124M", "1B"])
    compiled = {"yes": [True], "no": [False], "both": [True, False]}[args.compiled]
    print(table(run_all(cases(models, loops, compiled), args)))


if __name__ == "__main__":
    main()
