"""``trainer rehearse FILE ... --gpus N``: the memory and the exchanges of a large job, on
a machine without a GPU.

    trainer rehearse accel_configs/fsdp.yaml train.yaml --gpus 64 --gpu H100
    trainer rehearse accel_configs/zero3.yaml train.yaml --gpus 8 --gpu 24GiB --micro_batch_size 2

Two steps of the real task under the real strategy run for two of the ranks, on a fake GPU without
values. The bytes are those of the tensors of the job. The seconds of the collectives are estimates
from the links of the GPU, without overlap. Nothing is compiled.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ..config.paths import LocalPath
from ..errors import usage_error
from ..rehearsal.changes import changes_of
from ..rehearsal.collectives import Collective
from ..rehearsal.job import Job, rehearsed
from ..rehearsal.ledger import KINDS
from ..reporting.gpus import memory_of, usable_bytes
from ..text import columns, size, table
from .usage import read_training

_TOLD = ("strategy", "world_size", "mixed_precision", "micro_batch_size", "accumulation_steps")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    gpus: Annotated[int, "all GPUs of the job", Field(ge=1, le=16_384)]
    gpu: Annotated[str, "a name, or memory such as 24GiB"] = "H100"
    gpus_per_machine: Annotated[int, "of the cluster", Field(ge=1)] = 8
    ranks: Annotated[Literal["two", "all"], "whose collectives are compared"] = "two"
    to: Annotated[LocalPath, "the JSON"] = "rehearsal.json"


def run(options: Options, settings: Sequence[str], words: Sequence[str]) -> int:
    """Print the table, and write the JSON. Return 0 if the job fits and the ranks agree, else 1."""
    training, files = read_training(words, settings)
    if len(files) != 1:
        raise usage_error("", None, "name a launch file, as in accel_configs/, and no second")
    job = Job(
        launch_file=files[0].data,
        file=files[0].path,
        words=training,
        gpus=options.gpus,
        gpu=options.gpu,
        per_machine=options.gpus_per_machine,
    )
    usable = usable_bytes(memory_of(options.gpu))

    ranks = range(options.gpus) if options.ranks == "all" else sorted({0, options.gpus - 1})
    results = list(job.rehearse(ranks))
    difference = first_difference(results, ranks)
    report = max(results, key=itemgetter("most"))
    collectives = _summed(report, options.gpu)
    report.update(collectives=collectives, gpu=options.gpu, difference=difference, change=None)
    print(table_of(report))
    fits = report["most"] <= usable
    print("fits:" if fits else "DOES NOT FIT:", size(report["most"]), "of", size(usable))

    if not fits:
        report["change"] = change_that_fits(changes_of(job, report["plan"]), usable)
    Path(options.to).write_text(json.dumps(report, indent=1))
    return not fits or bool(difference)


def _summed(result: Mapping[str, Any], gpu: str) -> list[dict[str, Any]]:
    """Return the collectives of a step by kind, group and dtype."""
    sums: dict[tuple[str, int, int], Any] = defaultdict(Counter)
    for fields in result["collectives"][result["first"] :]:
        made = Collective(*fields)
        found = sums[f"{made.kind} {made.dtype}", made.ranks, made.machines]
        found.update(count=1, bytes=made.bytes, seconds=made.seconds(gpu))
    return [
        {"kind": kind, "ranks": ranks, "machines": machines, **found}
        for (kind, ranks, machines), found in sums.items()
    ]


def table_of(report: Mapping[str, Any]) -> str:
    """Return the report as text of 80 columns."""
    phases, plan = report["phases"], report["plan"]
    facts = [(key, str(plan[key])) for key in _TOLD]
    facts.append(("parameters", f"{plan['parameters']:,}"))
    rows = [["of a rank", *KINDS, "all"]]
    for name, phase in phases.items():
        rows.append([name, *map(size, phase["at_most"].values()), size(phase["most"])])
    peak = report["peak"]
    most = f"most in {peak}: {phases[peak]['line']}"
    lines = [table(facts, plan["notices"]), columns(rows), most, ""]

    rows = [["collectives of a step", "ranks", "count", "bytes", "seconds (estimate)"]]
    for made in report["collectives"]:
        cells = [made["kind"], str(made["ranks"]), str(made["count"]), size(made["bytes"])]
        rows.append([*cells, f"{made['seconds']:.3f}"])
    lines.append(columns(rows))

    lines += [
        f"note: {line} {kind} that is not known ({times} a step): elements are 1"
        for kind, line, _, is_guessed, times in report["reads"]
        if is_guessed
    ]
    return "\n".join([*lines, report["difference"], "nothing is compiled"])


def first_difference(results: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> str:
    """Return the first collective in which a rank differs from the first rank. "" if none does."""
    own, *others = [[Collective(*fields) for fields in found["collectives"]] for found in results]
    for rank, made in zip(ranks[1:], others, strict=True):
        for number, (here, there) in enumerate(zip_longest(own, made, fillvalue=Collective()), 1):
            if here.signature != there.signature:
                return (
                    f"RANKS DIFFER at collective {number}, so the job would hang or mix up "
                    f"values:\n  rank {ranks[0]} has {here}\n  rank {rank} has {there}"
                )
    return ""


def change_that_fits(changes: Iterable[tuple[str, Job]], usable: float) -> str | None:
    """Try changes of a job, and return the first that fits. Print each."""
    for name, found in rehearsed(changes):
        print(f"{name}: {size(found['most'])}", flush=True)
        if found["most"] <= usable:
            return name
    print("no single change makes it fit: take more GPUs, or change several")
    return None
