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
    OVERLAPPED,
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
USABLE = 0.92  # of all memory: an allocator cannot fill every hole
_OPTIMIZER_SLOTS = {"adamw": 2, "adam": 2, "sgd": 1}  # tensors per parameter; sgd has momentum


_OFFLOAD_NAMES = {
    "none": "",
    "optimizer": " + optimizer in host memory",
    "all": " + states in host memory",
}


@dataclass(frozen=True, kw_only=True)
class Row:
    """One offer of the planner: a strategy, and what one rank needs under it, in bytes.

    Args:
        strategy: its name.
        offload: what is in host memory: ``none``, ``optimizer`` or ``all``.
        recompute: whether activations are recomputed in the backward pass.
        footprint: model states and buffers.
        activations: None where the model's shape is not known.
        sent: bytes that a rank sends in one optimizer step.
        paper: model states after the ZeRO paper; None where it has no such case.
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
        """Return the bytes on the GPU, activations included."""
        return self.footprint.device + (self.activations or 0)

    def fits(self, gpu: Gpu) -> bool:
        """Return whether it fits into the memory that is usable."""
        return self.device + RESERVED <= USABLE * gpu.gib * 2**30

    @property
    def name(self) -> str:
        """Return what people call it."""
        return self.strategy + _OFFLOAD_NAMES[self.offload]


def make_rows(subject: Subject, args: argparse.Namespace) -> list[Row]:
    """Compute every offer, first without and then with recomputed activations."""
    offers = OFFERED if args.gpus > 1 else OFFERED_ALONE
    rows = [_make_row(subject, args, *offer, recompute=False) for offer in offers]
    if subject.activations:
        rows += [_make_row(subject, args, *offer, recompute=True) for offer in offers]
    return rows


def _make_row(
    subject: Subject, args: argparse.Namespace, strategy: str, offload: str, *, recompute: bool
) -> Row:
    parameters = elements(subject.parts)
    trainable = elements(subject.parts, trainable=True)
    case = Case(
        strategy=strategy,
        world_size=args.gpus,
        mixed_precision=args.precision,
        slots=_OPTIMIZER_SLOTS[args.optimizer],
        accumulation_steps=args.accumulation,
        offload=offload,
        unit=subject.unit,
        sync_each_batch=args.sync_each_batch,
        gpu=True,
        overlap=strategy in OVERLAPPED,
    )

    activations = None
    if subject.activations:
        counted = subject.activations[strategy in COMPUTE_IN_COPIES]
        activations = counted.recomputed if recompute else counted.saved

    # The paper's table is for Adam on a model that is trained whole, on the GPU.
    paper = None
    if parameters == trainable and args.optimizer != "sgd" and offload == "none":
        paper = paper_bytes(PAPER_STAGE[strategy], parameters, args.gpus)
    return Row(
        strategy=strategy,
        offload=offload,
        recompute=recompute,
        footprint=footprint(case, subject.parts),
        activations=activations,
        sent=sent_bytes(case, parameters, trainable),
        paper=paper,
    )


def choose(rows: Sequence[Row], gpu: Gpu) -> tuple[Row | None, str]:
    """Return the first row that fits, and why in one sentence; None where none does.

    The offers are in the order of speed; recomputing costs a third more arithmetic, host memory
    costs more than that.
    """
    fastest_first = sorted(rows, key=lambda row: (row.offload != "none", row.recompute))
    too_large: list[str] = []
    for row in fastest_first:
        if row.fits(gpu):
            return row, _why(row, gpu, too_large)
        if row.name not in too_large:
            too_large.append(row.name)

    least = min(rows, key=lambda row: row.device)
    needed = size(least.device + RESERVED)
    return None, f"nothing fits on {gpu.name}: the least, {least.name}, needs {needed} a GPU"


def _why(row: Row, gpu: Gpu, faster: Sequence[str]) -> str:
    """Return the sentence that recommends a row.

    Args:
        row: the fastest that fits.
        gpu: on which it fits.
        faster: the names of the offers that are faster, and do not fit.
    """
    used = row.device + RESERVED
    share = 100 * used / (gpu.gib * 2**30)
    text = f"recommended: {row.name}, {size(used)} of {gpu.name} ({share:.0f} %)"
    if row.recompute:
        text += ", with activation checkpointing (the task's model turns it on)"
    if faster:
        text += f"; {', '.join(faster)}: faster, but too large"
    else:
        text += "; nothing is faster"
    if row.activations is None:
        text += "; activations come on top"
    return text


def run(argv: Sequence[str]) -> int:
    """Print what each strategy needs, and with ``--gpu`` which to take.

    Returns:
        0 where something fits or no GPU was named, 1 where nothing does.

    Raises:
        ConfigError: the model cannot be measured, or there is nothing to write.
    """
    args = _parser().parse_args(argv)
    gpu = None if args.gpu is None else gpu_of(args.gpu)
    subject = measure_subject(args)
    rows = make_rows(subject, args)
    chosen, why = (None, "") if gpu is None else choose(rows, gpu)

    if args.json:
        report = {
            "subject": subject.title,
            "gpu": None if gpu is None else asdict(gpu),
            "recommended": why,
            "rows": [_as_json(row, gpu) for row in rows],
        }
        print(json.dumps(report, indent=2))
    else:
        print("\n".join(_as_table(subject, rows, gpu, args)))
        if gpu is not None:
            print(f"\n{why}")

    if args.write is not None:
        _write(chosen, args)
    nothing_fits = gpu is not None and chosen is None
    return 1 if nothing_fits else 0


def _write(chosen: Row | None, args: argparse.Namespace) -> None:
    """Write the launch file of the recommended row."""
    if chosen is None:
        rule = "nothing to write: name a --gpu that something fits on"
        raise usage_error("write", args.write, rule)

    text = accelerate_yaml(
        chosen.strategy,
        world_size=args.gpus,
        num_machines=-(-args.gpus // args.gpus_per_machine),  # rounded up
        mixed_precision=args.precision,
        offload=chosen.offload,
    )
    Path(args.write).write_text(text, encoding="utf-8")
    print(f"written: {args.write}")


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


_HEADING = [
    "strategy",
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "buffers",
    "on the GPU",
    "in host memory",
    "to save",
    "sent a step",
    "ZeRO paper",
]
_NOTES = [
    "parameters, gradients, optimizer: formulas, checked against live bytes on two processes "
    "within 1 %.",
    "ZeRO paper: 2 bytes a parameter, 2 a gradient, 12 for Adam. Here replicas and torch's own "
    "sharding keep 4 + 4 + 8; the ZeRO engine keeps 2 + 2 + 12 under bf16 and fp16, 4 + 4 + 12 in "
    "full precision.",
    "to save: host memory that a checkpoint takes while it is written, on top of what is there "
    "already.",
    "buffers come and go within a step; the sum is an upper bound, for gradients grow while "
    "activations shrink.",
]


def _as_table(
    subject: Subject, rows: Sequence[Row], gpu: Gpu | None, args: argparse.Namespace
) -> list[str]:
    """Return the lines of the answer: the subject, the table, what was assumed, notes."""
    heading = list(_HEADING)
    if gpu is not None:
        heading.append("fits")
    cells = [heading, *(_cells(row, gpu) for row in rows)]

    batch = f"micro-batch {args.micro_batch}"
    if args.sequence:
        batch += f" x {args.sequence} tokens"
    setting = f"{args.gpus} GPUs, {args.precision}, {args.optimizer}, {batch}; per GPU:"
    notes = [*args.assumed, *subject.notes, *_NOTES]
    return [subject.title, setting, "", *columns(cells, left=1), "", *notes]


def _cells(row: Row, gpu: Gpu | None) -> list[str]:
    """Return a row of the table."""
    states = row.footprint
    cells = [
        f"{row.name} + recompute" if row.recompute else row.name,
        size(states.parameters),
        size(states.gradients),
        size(states.optimizer),
        "?" if row.activations is None else size(row.activations),
        size(states.buffers),
        size(row.device),
        size(states.host),
        size(states.snapshot),
        size(row.sent),
        "" if row.paper is None or row.recompute else _decimal(row.paper),
    ]
    if gpu is not None:
        cells.append("yes" if row.fits(gpu) else "no")
    return cells


def _decimal(count: float) -> str:
    """Return bytes as the paper writes them: in powers of ten."""
    if count >= 1e8:
        return f"{count / 1e9:.1f} GB"
    return f"{count / 1e6:.1f} MB"


def _parser() -> argparse.ArgumentParser:
    summary = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(prog="trainer plan", description=summary)
    parser.add_argument(
        "what",
        type=local_text,
        help="7.5B, a folder or name of a Hugging Face config, or a training config (YAML, JSON)",
    )
    parser.add_argument(
        "--gpu",
        help=f"memory such as 24GiB, or one of {', '.join(gpu.name for gpu in KNOWN.values())}",
    )
    parser.add_argument("--gpus", type=_positive, default=1, help="how many in all; default 1")
    parser.add_argument("--gpus_per_machine", type=_positive, default=8, help="default 8")
    parser.add_argument(
        "--micro_batch",
        type=_positive,
        default=1,
        help="examples per GPU and backward; a training config says its own",
    )
    parser.add_argument(
        "--sequence",
        type=_positive,
        help="tokens of one example; default: what the model's config allows, at most 4096",
    )
    parser.add_argument(
        "--accumulation",
        type=_positive,
        help="backwards per optimizer step; else the training config's, else 1",
    )
    parser.add_argument("--sync_each_batch", action="store_true", help="as in the training config")
    parser.add_argument(
        "--precision", choices=["no", "bf16", "fp16"], help="else the training config's, else bf16"
    )
    parser.add_argument(
        "--optimizer",
        choices=OPTIMIZERS,
        help="else the training config's, else adamw; sgd has momentum",
    )
    parser.add_argument(
        "--lora",
        type=_positive,
        help="rank of LoRA adapters on every linear layer of the blocks; the rest is frozen",
    )
    parser.add_argument(
        "--write", metavar="FILE", type=local_text, help="write the recommended accelerate YAML"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")

    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, 1 or more")
    return int(text)
