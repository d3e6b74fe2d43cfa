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
    zero2-late, zero2-bf16, fsdp-bf16
              two processes and more, the smaller model, compiled: zero2 without overlap_comm, and
              gradients that are exchanged in bf16 (reduce_dtype); one process exchanges nothing

Not run on a GPU yet.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import gpu_jobs
from benchmarks.gpu_jobs import ROOT, last_lines

LOOPS = ("hand", "single", "ddp", "fsdp", "zero1", "zero2", "zero3")
EXCHANGES = ("zero2-late", "zero2-bf16", "fsdp-bf16")
WARM, TIMED = 5, 20
GIB = 2**30


class Case(NamedTuple):
    """What a row measures."""

    model: str
    loop: str
    compiled: bool

    def __str__(self) -> str:
        return f"{self.model} {self.loop}{' compiled' if self.compiled else ''}"


def cases(
    models: Sequence[str],
    loops: Sequence[str],
    compiled: Sequence[bool],
    exchanges: Sequence[str] = (),
) -> list[Case]:
    """Return the rows, most wanted first.

    Args:
        exchanges: loops that are measured once, with the first model, behind its other rows.
    """
    found: list[Case] = []
    for is_compiled in compiled:
        for model in models:
            found += [Case(model, loop, is_compiled) for loop in loops]
            if (model, is_compiled) == (models[0], compiled[0]):
                found += [Case(model, loop, is_compiled) for loop in exchanges]
    # ZeRO-3 refuses to compile.
    return [case for case in found if not (case.compiled and case.loop.startswith("zero3"))]


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
        settings = {"reduce_dtype": "bf16"} if case.loop.endswith("-bf16") else {}
        files = launch_file(case.loop, processes)
        gpu_speed.ours(task, case.compiled, clock, files=files, **settings)

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
    if loop == "zero2-late":
        return {"deepspeed": str(without_overlap())}

    loop = loop.removesuffix("-bf16")
    text = (ROOT / "accel_configs" / f"{loop}.yaml").read_text()
    path = Path(tempfile.mkdtemp()) / f"{loop}.yaml"
    path.write_text(text.replace("num_processes: 2", f"num_processes: {processes}"))
    return {"accel_config": str(path)}


def without_overlap() -> Path:
    """Write the committed file of ZeRO-2 with ``overlap_comm`` off, and return its path."""
    settings = json.loads((ROOT / "ds_configs" / "zero2.json").read_text())
    settings["zero_optimization"]["overlap_comm"] = False
    path = Path(tempfile.mkdtemp()) / "zero2.json"
    path.write_text(json.dumps(settings))
    return path


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


def run_all(wanted: Sequence[Case], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Measure row by row until the budget is spent, and append each to the file."""
    budget = gpu_jobs.Budget(args.budget)
    rows: list[dict[str, Any]] = []
    for case, limit in budget.jobs(wanted, args.limit):
        began = budget.spent
        words = ["benchmarks.gpu_table", "--row", json.dumps(case)]
        words += ["--processes", str(args.processes)]
        words += ["--warm", str(args.warm), "--timed", str(args.timed)]
        alone = args.processes == 1 and case.loop in ("hand", "single", "trainer")
        found = gpu_jobs.run(words, limit=limit, ranks=0 if alone else args.processes)

        row = {**case._asdict(), **found, "seconds": round(budget.spent - began, 1)}
        row["furthest_loss"] = furthest_loss(row, rows)
        rows.append(row)
        gpu_jobs.append(Path(args.out), row)

        outcome = f"{row['ms']:.2f} ms a step" if "ms" in row else last_lines(row["error"])
        print(f"[{budget.spent:4.0f} s] {case}: {outcome}", flush=True)
    return rows


def furthest_loss(row: Mapping[str, Any], before: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the largest relative difference of a step's loss from the loop by hand."""
    for other in before:
        same = all(other[key] == row[key] for key in ("model", "compiled"))
        if same and other["loop"] == "hand" and other.get("losses") and row.get("losses"):
            pairs = zip(row["losses"], other["losses"], strict=True)
            return max(abs(loss - by_hand) / abs(by_hand) for loss, by_hand in pairs)
    return None


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
            errors.append(f"- {name}: {last_lines(row['error'])}")
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", help="append each row to this file, as a line of JSON")
    parser.add_argument("--show", help="print the table of such a file, and measure nothing")
    parser.add_argument("--budget", type=float, default=450, help="seconds for all rows")
    parser.add_argument("--limit", type=float, default=100, help="seconds for a row")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument(
        "--loops", nargs="+", default=LOOPS, choices=[*LOOPS, *EXCHANGES, "trainer"]
    )
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

    processes = gpu_jobs.prepare(rehearse=args.rehearse)
    args.processes = args.processes or processes
    loops = [loop for loop in args.loops if loop != "single" or args.processes == 1]
    models = args.models or (["tiny"] if args.rehearse else ["124M", "1B"])
    compiled = {"yes": [True], "no": [False], "both": [True, False]}[args.compiled]
    whole = tuple(args.loops) == LOOPS
    exchanges = EXCHANGES if whole and args.processes > 1 else ()
    print(table(run_all(cases(models, loops, compiled, exchanges), args)))


if __name__ == "__main__":
    main()
