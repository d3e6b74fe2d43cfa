"""``trainer plan COUNT | CONFIG``: which launch files fit the memory of a GPU.

    trainer plan 7.5B --gpus 64 --gpu A100-80
    trainer plan train.yaml --gpus 2 --gpu 24GiB --micro_batch_size 2

Each launch file of a training config is rehearsed (``trainer rehearse``). For a number of
parameters formulas give the bytes of parameters, gradients and optimizer: docs/strategies.md.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any

from ..config.documents import read_document
from ..errors import usage_error
from ..rehearsal.job import Job
from ..rehearsal.kinds import KINDS
from ..reporting.gpus import memory_of, usable_bytes
from ..strategies.memory import ALONE, LAYOUTS, Layout, states_of
from ..text import columns, size
from .usage import command_parser, local_text, positive_number

_LAUNCH_FILES = Path(__file__).parent / "templates" / "classifier" / "accel_configs"
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kMBT]?)")
_LAYERS = 32  # of a number of parameters


def run(argv: Sequence[str]) -> int:
    """Print the bytes of each launch file.

    Returns:
        0 if a launch file fits or no GPU was named, else 1.

    Raises:
        ConfigError: the model or the GPU is not known.
    """
    args, settings = _parser().parse_known_args(argv)
    usable = usable_bytes(memory_of(args.gpu)) if args.gpu else math.inf
    layouts = LAYOUTS if args.gpus > 1 else ALONE
    count = _COUNT.fullmatch(args.what)
    if count:
        if settings:
            raise usage_error("", settings[0], "is a setting, and a number of parameters has none")
        trainable = round(float(count[1]) * 1000 ** " kMBT".index(count[2]))
        rows = [_row(name, layout, trainable, args) for name, layout in layouts.items()]
        how = f"{args.precision}, AdamW; buffers are an upper bound, without activations"
    elif args.what.endswith((".yaml", ".yml")):
        rows = [_rehearsed(name, args, settings) for name in layouts]
        how = "rehearsed, at the peak of a step"
    else:
        raise usage_error("", args.what, "no parameter count such as 7B, no training config")
    fitting = [row["launch file"] for row in rows if row["on the GPU"] <= usable]

    print(f"each of {args.gpus} GPUs under the files of accel_configs/\n({how}):")
    print("\n".join(columns([[name, *(_cell(row[name]) for row in rows)] for name in rows[0]])))
    if not fitting:
        print(f"{args.gpu}: nothing fits; take more GPUs or a smaller batch")
    elif args.gpu:
        print(f"{args.gpu}: take {fitting[0]}, the fastest that fits")
    return int(not fitting)


def _cell(value: str | int) -> str:
    """Return a value of a row as text."""
    return PurePath(value).stem if isinstance(value, str) else size(value)


def _row(name: str, layout: Layout, trainable: int, args: argparse.Namespace) -> dict[str, Any]:
    """Return the bytes of a GPU under a launch file, by formulas."""
    states = states_of(layout, trainable, args.gpus, precision=args.precision, layers=_LAYERS)
    host = states.total if layout.offloads else 0
    return {
        "launch file": f"accel_configs/{name}.yaml",
        **asdict(states),
        "in host memory": host,
        "on the GPU": states.total - host + states.buffers,
    }


def _rehearsed(name: str, args: argparse.Namespace, settings: Sequence[str]) -> dict[str, Any]:
    """Return the bytes of a GPU at the peak of a step under a launch file."""
    file = f"accel_configs/{name}.yaml"
    job = Job(
        launch_file=dict(read_document(str(_LAUNCH_FILES / f"{name}.yaml")).data),
        file=file,
        words=[f"--config={args.what}", *settings],
        gpus=args.gpus,
        gpu=args.gpu or "H100",
    )
    (found,) = job.rehearse()
    peak = max(found["phases"].values(), key=lambda phase: phase["most"])
    kinds = {kind: peak["at_most"].get(kind, 0) for kind in KINDS}
    return {"launch file": file, **kinds, "on the GPU": peak["most"]}


def _parser() -> argparse.ArgumentParser:
    parser = command_parser(
        "plan",
        __doc__,
        epilog="everything else is a setting of the training config, as in --micro_batch_size 2",
    )
    add = parser.add_argument
    add("what", type=local_text, metavar="COUNT|CONFIG")
    add("--gpu", help="a name such as H100 or A100-80, or memory such as 24GiB")
    add("--gpus", type=positive_number, default=1, help="number of all GPUs; default 1")
    help_of_precision = "of a number of parameters; default bf16"
    add("--precision", choices=["no", "bf16", "fp16"], default="bf16", help=help_of_precision)
    return parser
