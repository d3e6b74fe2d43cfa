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
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ..config.paths import LocalPath
from ..errors import LaunchError, usage_error
from ..rehearsal.changes import changes_of
from ..rehearsal.collectives import Collective
from ..rehearsal.job import Job
from ..rehearsal.ledger import KINDS
from ..reporting.gpus import memory_of, usable_bytes
from ..text import columns, size, table
from .usage import read_training, read_words

_TOLD = ("strategy", "world_size", "mixed_precision", "micro_batch_size", "accumulation_steps")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options of the command."""

    gpus: Annotated[int, "all GPUs of the job", Field(ge=1, le=16_384)]
    gpu: Annotated[str, "a name, or memory such as 24GiB"] = "H100"
    gpus_per_machine: Annotated[int, "of the cluster", Field(ge=1)] = 8
    ranks: Annotated[Literal["two", "all"], "whose collectives are compared"] = "two"
    to: Annotated[LocalPath, "the JSON"] = "rehearsal.json"


def run(argv: Sequence[str]) -> int:
    """Print the table, and write the JSON. Return 0 if the job fits and the ranks agree, else 1."""
    options, settings, words = read_words(__doc__, Options, argv)
    training, launch_files = read_training(words, settings)
    if len(launch_files) != 1:
        raise usage_error("", None, "name a launch file, as in accel_configs/, and no second")
    job = Job(
        launch_file=launch_files[0].data,
        file=launch_files[0].path,
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
    taken = f"{size(report['most'])} of the {size(usable)} that tensors can use on {options.gpu}"
    print(f"{'fits' if fits else 'DOES NOT FIT'}: {taken}")

    if not fits:
        report["change"] = change_that_fits(changes_of(job, report["plan"]), usable)
    Path(options.to).write_text(json.dumps(report, indent=1) + "\n")
    return int(not fits or difference != "")


def _summed(result: Mapping[str, Any], gpu: str) -> list[dict[str, Any]]:
    """Return the collectives of a step by kind, group and dtype."""
    alike = defaultdict(list)
    for fields in result["collectives"][result["first"] :]:
        made = Collective(*fields)
        alike[made.kind, made.dtype, made.ranks, made.machines].append(made)
    return [
        {
            "kind": f"{kind} {dtype}",
            "ranks": ranks,
            "machines": machines,
            "count": len(group),
            "bytes": sum(made.bytes for made in group),
            "seconds": sum(made.seconds(gpu) for made in group),
        }
        for (kind, dtype, ranks, machines), group in alike.items()
    ]


def table_of(report: Mapping[str, Any]) -> str:
    """Return the report as text of 80 columns."""
    phases = report["phases"]
    facts = [(key, str(report["plan"][key])) for key in _TOLD]
    facts.append(("parameters", f"{report['parameters']:,}"))
    rows = [["of a rank", *KINDS, "all"]]
    for name, phase in phases.items():
        rows.append([name, *map(size, [*phase["at_most"].values(), phase["most"]])])
    peak = report["peak"]
    lines = [table(facts, report["notices"]), columns(rows)]
    lines += [f"most in {peak}: {phases[peak]['line']}", ""]

    rows = [["collectives of a step", "ranks", "count", "bytes", "seconds (estimate)"]]
    for made in report["collectives"]:
        cells = [made["kind"], str(made["ranks"]), str(made["count"]), size(made["bytes"])]
        rows.append([*cells, f"{made['seconds']:.3f}"])
    lines.append(columns(rows))

    for kind, line, _, is_guessed, times in report["reads"]:
        if is_guessed:
            lines.append(f"note: {line} {kind} that is not known ({times} a step): elements are 1")
    used = f"{report['seconds']:.0f} s and {size(report['host_bytes'])}"
    lines += [report["difference"], f"rehearsed in {used} a rank, nothing is compiled"]
    return "\n".join(lines)


def first_difference(results: Sequence[Mapping[str, Any]], ranks: Sequence[int]) -> str:
    """Return the first collective in which a rank differs from the first rank. "" if none does."""
    own, *others = [[Collective(*fields) for fields in found["collectives"]] for found in results]
    for rank, made in zip(ranks[1:], others, strict=True):
        for number, (here, there) in enumerate(zip_longest(own, made, fillvalue=Collective()), 1):
            if here.signature != there.signature:
                return (
                    f"RANKS DIFFER at collective {number}, so the job would hang or mix up "
                    f"values:\n  rank {ranks[0]} {_told(here)}\n  rank {rank} {_told(there)}"
                )
    return ""


def _told(made: Collective) -> str:
    if not made.kind:
        return "has ended"
    return f"has {made.kind} of {size(made.bytes)} over {made.ranks} ranks at {made.line}"


def change_that_fits(changes: Iterable[tuple[str, Job]], usable: float) -> str | None:
    """Try changes of a job, and return the first that fits. Print each."""
    for name, changed in changes:
        try:
            (found,) = changed.rehearse()
        except LaunchError as error:
            print(f"with {name}: {error}")
            continue
        fits = found["most"] <= usable
        print(f"with {name}: {size(found['most'])}{', fits' * fits}", flush=True)
        if fits:
            return name
    print("no single change makes it fit: take more GPUs, or change several")
    return None
