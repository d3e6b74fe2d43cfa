"""``trainer plan WHAT``: what fits on which GPUs, before anything is bought.

WHAT is a parameter count (7.5B), a Hugging Face configuration (a folder or a name), or a training
config.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...config.train_config import OPTIMIZERS
from ...reporting.gpus import KNOWN, Gpu, gpu_of
from ...text import columns, size
from ..usage import local_text, usage_error
from .costs import (
    COMPUTE_IN_COPIES,
    OFFERED,
    OFFERED_ALONE,
    PAPER_STAGE,
    Case,
    Footprint,
    elements,
    footprint,
    paper_bytes,
    sent_bytes,
)
from .launch_file import accelerate_yaml
from .subject import Subject, measure_subject

RESERVED = 1 << 30  # the driver's context, and the libraries' workspaces
USABLE = 0.92  # of the rest: an allocator cannot fill every hole


@dataclass(frozen=True, kw_only=True)
class Row:
    """One strategy on one rank, in bytes; ``activations`` is None where the model's shape is not
    known.
    """

    strategy: str
    offload: str
    recompute: bool
    footprint: Footprint
    activations: int | None
    sent: int
    paper: float | None

    @property
    def device(self) -> int:
        """Sum what lies on the GPU, activations included."""
        return self.footprint.device + (self.activations or 0)

    def fits(self, gpu: Gpu) -> bool:
        """Tell whether it fits into the memory that is usable."""
        return self.device + RESERVED <= USABLE * gpu.gib * 2**30

    @property
    def name(self) -> str:
        """Return what people call it."""
        offload = {
            "none": "",
            "optimizer": " + optimizer in host memory",
            "all": " + states in host memory",
        }
        return self.strategy + offload[self.offload]


def make_rows(subject: Subject, args: argparse.Namespace) -> list[Row]:
    """Compute every offer, first without and then with recomputed activations."""
    rows = []
    parameters, trainable = elements(subject.parts), elements(subject.parts, trainable=True)
    in_paper = parameters == trainable and args.optimizer != "sgd"
    for recompute in (False, True) if subject.activations else (False,):
        for strategy, offload in OFFERED if args.gpus > 1 else OFFERED_ALONE:
            case = Case(
                strategy=strategy,
                world_size=args.gpus,
                mixed_precision=args.precision,
                slots={"adamw": 2, "adam": 2, "sgd": 1}[args.optimizer],
                accumulation_steps=args.accumulation,
                offload=offload,
                unit=subject.unit,
                sync_each_batch=args.sync_each_batch,
            )
            kept = (
                subject.activations[strategy in COMPUTE_IN_COPIES] if subject.activations else None
            )
            paper = paper_bytes(PAPER_STAGE[strategy], parameters, args.gpus)
            rows.append(
                Row(
                    strategy=strategy,
                    offload=offload,
                    recompute=recompute,
                    footprint=footprint(case, subject.parts),
                    activations=None
                    if kept is None
                    else kept.recomputed
                    if recompute
                    else kept.saved,
                    sent=sent_bytes(case, parameters, trainable),
                    paper=paper if in_paper and offload == "none" else None,
                )
            )
    return rows


def choose(rows: Sequence[Row], gpu: Gpu) -> tuple[Row | None, str]:
    """Return the first row that fits, and why in one sentence.

    The offers stand in the order of speed; recomputing costs a third more arithmetic, host memory
    costs more than that.
    """
    order = sorted(rows, key=lambda row: (row.offload != "none", row.recompute))
    row = next((row for row in order if row.fits(gpu)), None)
    if row is None:
        least = min(rows, key=lambda row: row.device)
        return (
            None,
            f"nothing fits on {gpu.name}: the least, {least.name}, needs {size(least.device + RESERVED)} a GPU",
        )
    faster = list(dict.fromkeys(other.name for other in order[: order.index(row)]))
    why = f"; {', '.join(faster)}: faster, but too large" if faster else "; nothing is faster"
    if row.recompute:
        why = f", with activation checkpointing (the task's model turns it on){why}"
    if row.activations is None:
        why += "; activations come on top"
    used = 100 * (row.device + RESERVED) / (gpu.gib * 2**30)
    return (
        row,
        f"recommended: {row.name}, {size(row.device + RESERVED)} of {gpu.name} ({used:.0f} %){why}",
    )


def run(argv: Sequence[str]) -> int:
    """Return 0 where something fits or no GPU was named, 1 where nothing does."""
    args = _parser().parse_args(argv)
    gpu = None if args.gpu is None else gpu_of(args.gpu)
    subject = measure_subject(args)
    rows = make_rows(subject, args)
    chosen, why = (None, "") if gpu is None else choose(rows, gpu)
    if args.json:
        head = {
            "subject": subject.title,
            "gpu": None if gpu is None else asdict(gpu),
            "recommended": why,
        }
        print(json.dumps({**head, "rows": [_as_json(row, gpu) for row in rows]}, indent=2))
    else:
        print("\n".join(_as_table(subject, rows, gpu, args)))
        if gpu is not None:
            print(f"\n{why}")
    if args.write is not None:
        if chosen is None:
            raise usage_error(
                "write", args.write, "nothing to write: name a --gpu that something fits on"
            )
        text = accelerate_yaml(
            chosen.strategy,
            world_size=args.gpus,
            num_machines=-(-args.gpus // args.gpus_per_machine),
            mixed_precision=args.precision,
            offload=chosen.offload,
        )
        Path(args.write).write_text(text, encoding="utf-8")
        print(f"written: {args.write}")
    return 1 if gpu is not None and chosen is None else 0


def _as_json(row: Row, gpu: Gpu | None) -> dict[str, Any]:
    return {
        "strategy": row.strategy,
        "offload": row.offload,
        "recompute": row.recompute,
        **asdict(row.footprint),
        "activations": row.activations,
        "device": row.device,
        "sent_per_step": row.sent,
        "paper": row.paper,
        "fits": None if gpu is None else row.fits(gpu),
    }


_HEADS = (
    "strategy", "parameters", "gradients", "optimizer", "activations", "buffers", "on the GPU", "in host memory",
    "to save", "sent a step", "ZeRO paper",
)  # fmt: skip
_NOTES = (
    "parameters, gradients, optimizer: formulas, held to live bytes on two processes within 1 %.",
    "ZeRO paper: 2 bytes a parameter, 2 a gradient, 12 for Adam. Here replicas and torch's own sharding keep "
    "4 + 4 + 8; the ZeRO engine keeps 2 + 2 + 12 under bf16 and fp16, 4 + 4 + 12 in full precision.",
    "to save: host memory that a checkpoint takes while it is written, on top of what lies there.",
    "buffers come and go within a step; the sum is an upper bound, for gradients grow while activations shrink.",
)


def _as_table(
    subject: Subject, rows: Sequence[Row], gpu: Gpu | None, args: argparse.Namespace
) -> list[str]:
    batch = f"micro-batch {args.micro_batch}" + (
        f" x {args.sequence} tokens" if args.sequence else ""
    )
    cells = [[*_HEADS, *(["fits"] if gpu else [])]]
    for row in rows:
        states = row.footprint
        activations = "?" if row.activations is None else size(row.activations)
        cell = [
            row.name + (" + recompute" if row.recompute else ""),
            size(states.parameters),
            size(states.gradients),
        ]
        cell += [
            size(states.optimizer),
            activations,
            size(states.buffers),
            size(row.device),
            size(states.host),
        ]
        cell += [
            size(states.snapshot),
            size(row.sent),
            "" if row.paper is None or row.recompute else _decimal(row.paper),
        ]
        cells.append(cell + ([("yes" if row.fits(gpu) else "no")] if gpu else []))
    head = [
        subject.title,
        f"{args.gpus} GPUs, {args.precision}, {args.optimizer}, {batch}; per GPU:",
        "",
    ]
    return [*head, *columns(cells, left=1), "", *args.assumed, *subject.notes, *_NOTES]


def _decimal(count: float) -> str:
    """Write bytes as the paper does: in powers of ten."""
    return f"{count / 1e9:.1f} GB" if count >= 1e8 else f"{count / 1e6:.1f} MB"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="trainer plan", description=(__doc__ or "").split("\n\n")[0]
    )
    add = parser.add_argument
    add(
        "what",
        type=local_text,
        help="7.5B, a folder or name of a Hugging Face config, or a training config (YAML, JSON)",
    )
    add(
        "--gpu",
        help=f"memory such as 24GiB, or one of {', '.join(gpu.name for gpu in KNOWN.values())}",
    )
    add("--gpus", type=_positive, default=1, help="how many in all; default 1")
    add("--gpus_per_machine", type=_positive, default=8, help="default 8")
    add(
        "--micro_batch",
        type=_positive,
        default=1,
        help="examples per GPU and backward; a training config says its own",
    )
    add(
        "--sequence",
        type=_positive,
        help="tokens of one example; default: what the model's config allows, at most 4096",
    )
    add(
        "--accumulation",
        type=_positive,
        help="backwards per optimizer step; else the training config's, else 1",
    )
    add("--sync_each_batch", action="store_true", help="as in the training config")
    add("--precision", choices=["no", "bf16", "fp16"], help="else the training config's, else bf16")
    add(
        "--optimizer",
        choices=OPTIMIZERS,
        help="else the training config's, else adamw; sgd has momentum",
    )
    add(
        "--lora",
        type=_positive,
        help="rank of LoRA adapters on every linear layer of the blocks; the rest is frozen",
    )
    add("--write", metavar="FILE", type=local_text, help="write the recommended accelerate YAML")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, 1 or more")
    return int(text)
