"""A table in minutes: time, MFU, memory and losses of each strategy, beside a loop by hand.

    python -m benchmarks.gpu_table --out $OUT/table.jsonl                 # 124M, not compiled first
    python -m benchmarks.gpu_table --out $OUT/table.jsonl --large         # 1B, and adapters on 8B
    python -m benchmarks.gpu_table --out /tmp/table.jsonl --rehearse      # its own code, on a CPU
    python -m benchmarks.gpu_table --show $OUT/table.jsonl                # the table again

Each row is a job of its own with a time limit of its own, and is appended to the file as soon as it
is there: whatever ends this command loses one row at most. A row that fails is written with its
error, and the next one starts. All rows of a model train the same way (``gpu_speed.py``) from the
same weights on the same rows, so their losses are compared with those of the loop by hand.

    cold      the loop by hand, for the cold start of the machine; not in the table
    hand      a plain PyTorch loop; torch's DDP around it where there are several processes. Measured
              again at the end: whatever differs by less than the two is no difference
    single    samecurve, one process
    ddp       samecurve under DDP; in one process the plain loop in torch's wrapper, for samecurve
              runs one process without it
    fsdp, zero1, zero2, zero3
              samecurve under the committed launch file; one process shards nothing, but pays for
              all of the strategy's own work
    lm-hand, lm, lm-mask
              packed documents: samecurve's CausalLM with the loss in chunks, beside the same by
              hand, and beside sdpa with a mask (``gpu_language.py``)
    lora      adapters on a model of 8 billion parameters, which fits on a GPU of 80 GB
    trainer   transformers.Trainer
    zero2-overlap, zero2-bf16, fsdp-bf16, hsdp
              two processes and more: zero2 with overlap_comm, gradients that are exchanged in
              bf16 (reduce_dtype), and replicas of a divided model; not compiled

Beside the file: ``traces.zip``, a step of the profiler for each row of 124M that is not compiled.
Run on one H200 on 2026-11-28 (docs/gpu.md), the rows of two processes on no GPU yet.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import gpu_jobs
from benchmarks.gpu_jobs import ROOT, last_lines

LOOPS = ("hand", "single", "ddp", "fsdp", "zero1", "zero2", "zero3")
LANGUAGE = ("lm-hand", "lm", "lm-mask")
EXCHANGES = ("zero2-overlap", "zero2-bf16", "fsdp-bf16", "hsdp")
COLD, HAND, LORA = "cold", "hand", "lora"
BY_HAND = {COLD, HAND, "lm-hand"}
ALONE = {*BY_HAND, "single", "trainer"}  # without a rank, if a single process trains
WARM, TIMED = 4, 16
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
    more: Sequence[str] = (),
) -> list[Case]:
    """Return the rows, most wanted first.

    Args:
        more: loops that are measured once, behind the first rows.
    """
    found = [Case(models[0], COLD, False)]
    for model in models:
        for is_compiled in compiled:
            # ZeRO-3 refuses to compile.
            some = [loop for loop in loops if not (is_compiled and loop == "zero3")]
            if (model, is_compiled) == (models[0], compiled[0]):
                some += more
            if HAND in some[:-1]:
                some.append(HAND)
            found += [Case(model, loop, is_compiled) for loop in some]
    return found


# -- the process of a row -------------------------------------------------------------------------


def measure(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Train, and return what it cost. Collective: call on every rank."""
    import torch
    import torch.distributed as dist

    from benchmarks import gpu_speed

    missing = gpu_speed.missing_memory(case.model)
    if missing:
        return {"error": missing}

    processes = args.processes
    clock = clock_of(case, args)
    by_hand = case.loop in BY_HAND or (case.loop == "ddp" and processes == 1)
    if by_hand and "RANK" in os.environ:
        gpu_speed.connect()
    task = task_of(case)
    if by_hand:
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
        "ms": 1e3 * clock.median,
        "p90_ms": 1e3 * clock.slow,
        "host_ms": 1e3 * clock.host,
        "steps": len(clock.times),
        "tokens_per_second": tokens * processes / clock.median,
        "mfu": utilization(task.operations() / clock.median),
        "allocated_gib": clock.allocated / GIB,
        "reserved_gib": clock.reserved / GIB,
        "losses": losses,
        "graphs": graphs_and_breaks(),
        "trace_error": clock.trace_error,
        "processes": processes,
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }


def clock_of(case: Case, args: argparse.Namespace) -> Any:
    """Return the clock of a row. A cold start is not timed for long."""
    from benchmarks import gpu_speed

    if case.loop == COLD:
        return gpu_speed.Clock(args.warm, args.timed)
    trace = None
    if args.traces is not None:
        trace = args.traces / f"{str(case).replace(' ', '-')}.json.gz"
    return gpu_speed.patient(warm=args.warm, timed=args.timed, trace=trace)


def task_of(case: Case) -> Any:
    """Return what a row trains."""
    from benchmarks import gpu_speed

    if case.loop not in (*LANGUAGE, LORA):
        return gpu_speed.Llama(name=case.model)
    from benchmarks import gpu_language

    return gpu_language.TASKS[case.loop](case.model)


def graphs_and_breaks() -> list[int]:
    """Return how many graphs this process has compiled, and how many breaks cut them."""
    from torch._dynamo.utils import counters

    return [counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())]


def launch_file(loop: str, processes: int) -> dict[str, str]:
    """Write the committed launch file for as many processes, and return it as an argument."""
    if loop in ("single", *LANGUAGE, LORA) and processes == 1:
        return {}
    if loop == "zero2-overlap":
        return {"deepspeed": str(with_overlap())}

    loop = loop.removesuffix("-bf16")
    name = "ddp" if loop in (*LANGUAGE, LORA) else loop
    text = (ROOT / "accel_configs" / f"{name}.yaml").read_text()
    text = re.sub("num_processes: .*", f"num_processes: {processes}", text)
    shards = max(1, processes // 2)
    text = re.sub("dp_shard_size: .*", f"dp_shard_size: {shards}", text)
    text = re.sub("dp_replicate_size: .*", f"dp_replicate_size: {processes // shards}", text)
    path = Path(tempfile.mkdtemp()) / f"{loop}.yaml"
    path.write_text(text)
    return {"accel_config": str(path)}


def with_overlap() -> Path:
    """Write the committed file of ZeRO-2 with ``overlap_comm``, and return its path."""
    settings = json.loads((ROOT / "ds_configs" / "zero2.json").read_text())
    settings["zero_optimization"]["overlap_comm"] = True
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
    peak = peak_of(device.name, "bf16")
    return operations_per_second / (peak * 1e12) if peak else None


def be_row(args: argparse.Namespace) -> None:
    """Measure the row of this process; rank 0 writes it."""
    case = Case(*json.loads(args.row))
    found = measure(case, args)
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
        is_alone = args.processes == 1 and (case.loop in ALONE or not launch_file(case.loop, 1))
        with tempfile.TemporaryDirectory() as folder:
            if not case.compiled and not args.large:
                words += ["--traces", folder]
            found = gpu_jobs.run(words, limit=limit, ranks=0 if is_alone else args.processes)
            keep_traces(Path(folder), Path(args.out).with_name("traces.zip"), len(rows))

        row = {**case._asdict(), **found, "seconds": round(budget.spent - began, 1)}
        rows.append(row)
        gpu_jobs.append(Path(args.out), row)

        outcome = f"{row['ms']:.2f} ms a step" if "ms" in row else last_lines(row["error"])
        print(f"[{budget.spent:4.0f} s] {case}: {outcome}", flush=True)
    return rows


def keep_traces(folder: Path, archive: Path, number: int) -> None:
    """Add the files of a row to an archive: a single file is easier to carry than many."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    for path in sorted(folder.iterdir()):
        with zipfile.ZipFile(archive, "a", zipfile.ZIP_DEFLATED) as file:
            file.write(path, f"{number:02}-{path.name}")


def hands(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the rows by hand that trained as a row did, the nearest first."""
    if row["loop"] == LORA:  # no loop by hand trains adapters
        return []
    name = "lm-hand" if row["loop"] in LANGUAGE else HAND
    place = next(number for number, other in enumerate(rows) if other is row)
    found = [
        (abs(number - place), number, other)
        for number, other in enumerate(rows)
        if other["loop"] == name
        and "ms" in other
        and all(other[key] == row[key] for key in ("model", "compiled"))
    ]
    return [other for _, _, other in sorted(found, key=lambda near: near[:2])]


def furthest_loss(row: Mapping[str, Any], by_hand: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the largest relative difference of a step's loss from the first row by hand."""
    for other in by_hand:
        if other is not row and other.get("losses") and row.get("losses"):
            pairs = zip(row["losses"], other["losses"], strict=False)
            return max(abs(loss - expected) / abs(expected) for loss, expected in pairs)
    return None


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as a table in Markdown, and the notes and errors below it."""
    lines = [
        "| model | loop | compiled | ms | p90 | host ms | of hand | tokens/s | MFU | allocated | reserved | losses |",
        "|---|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    notes = []
    for row in rows:
        name = f"{row['model']} | {row['loop']} | {'yes' if row['compiled'] else 'no'}"
        if "ms" not in row:
            notes.append(f"- {name}: {last_lines(row['error'])}")
            continue
        if row["loop"] == COLD:
            continue
        by_hand = hands(row, rows)
        gap = furthest_loss(row, by_hand)
        cells = [
            name,
            f"{row['ms']:.2f}",
            f"{row['p90_ms']:.2f}",
            f"{row['host_ms']:.2f}",
            f"{row['ms'] / by_hand[0]['ms']:.3f}" if by_hand else "",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['mfu']:.1%}" if row["mfu"] else "",
            f"{row['allocated_gib']:.2f}",
            f"{row['reserved_gib']:.2f}",
            "" if gap is None else f"{gap:.1e}",
        ]
        lines.append(f"| {' | '.join(cells)} |")
        _, breaks = row.get("graphs", (0, 0))
        if breaks:
            notes.append(f"- {name}: {breaks} graph breaks")
    return "\n".join([*lines, *notes, *noise(rows), *said_of_one(rows)])


def noise(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return by how much rows of the same loop by hand differ."""
    times: dict[str, list[float]] = {}
    for row in rows:
        if row["loop"] == HAND and "ms" in row:
            kind = f"{row['model']}, {'compiled' if row['compiled'] else 'not compiled'}"
            times.setdefault(kind, []).append(row["ms"])
    return [
        f"- {kind}: the rows by hand differ by {max(some) / min(some) - 1:.1%}; less is no difference"
        for kind, some in times.items()
        if len(some) > 1
    ]


def said_of_one(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what one process cannot show."""
    divided = any(row["loop"].startswith(("fsdp", "zero")) and "ms" in row for row in rows)
    if not divided or any(row.get("processes", 1) > 1 for row in rows):
        return []
    return ["- one process: FSDP2 and ZeRO divide nothing here, and save no memory"]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", help="append each row to this file, as a line of JSON")
    parser.add_argument("--show", help="print the table of such a file, and measure nothing")
    parser.add_argument("--budget", type=float, default=520, help="seconds for all rows")
    parser.add_argument("--limit", type=float, default=100, help="seconds for a row")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes, on the CPU")
    parser.add_argument(
        "--loops", nargs="+", choices=[*LOOPS, *LANGUAGE, *EXCHANGES, LORA, "trainer"]
    )
    parser.add_argument("--large", action="store_true", help="1B, and adapters on 8B")
    parser.add_argument("--models", nargs="+", help="default: 124M")
    parser.add_argument("--compiled", choices=["yes", "no", "both"], default="both")
    parser.add_argument("--processes", type=int, help="of a row; default: one for each GPU")
    parser.add_argument("--warm", type=int, default=WARM, help=argparse.SUPPRESS)
    parser.add_argument("--timed", type=int, default=TIMED, help=argparse.SUPPRESS)
    parser.add_argument("--traces", type=Path, help=argparse.SUPPRESS)
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
    print(table(run_all(plan(args), args)))


def plan(args: argparse.Namespace) -> list[Case]:
    """Return the rows that were asked for."""
    # What a small model answers first is whether its numbers are right. A large model is trained
    # compiled.
    both = [True, False] if args.large else [False, True]
    compiled = {"yes": [True], "no": [False], "both": both}[args.compiled]
    name = "tiny" if args.rehearse else "1B" if args.large else "124M"
    models = args.models or [name]
    if args.loops:
        return cases(models, args.loops, compiled)

    loops = [loop for loop in LOOPS if loop != "single" or args.processes == 1]
    more = EXCHANGES if args.processes > 1 and not args.large else ()
    wanted = cases(models, [*loops, *LANGUAGE], compiled, more)
    if args.large:
        wanted.insert(1, Case("tiny" if args.rehearse else "8B", LORA, False))
    return wanted


if __name__ == "__main__":
    main()
