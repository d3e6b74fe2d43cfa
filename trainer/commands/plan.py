"""``trainer plan MODEL``: which launch files fit the memory of a GPU.

    trainer plan 7.5B --gpus 64 --gpu A100-80
    trainer plan path/to/hf_model --gpus 8 --gpu H100 --micro_batch 2 --sequence 4096
    trainer plan train.yaml --gpus 2 --gpu 24GiB

MODEL is a parameter count, a folder with a Hugging Face model, or a training config. Each launch
file is rehearsed for a config (``trainer rehearse``). docs/strategies.md derives the formulas for
the others.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any

import torch
from torch import nn

from ..config.documents import read_document
from ..errors import usage_error
from ..private.transformers import model_from_config
from ..rehearsal.job import Job
from ..rehearsal.kinds import KINDS
from ..reporting.gpus import memory_of, usable_bytes
from ..strategies.memory import ALONE, LAYOUTS, Layout, states_of
from ..text import columns, size
from .usage import local_text, positive_number

_LAUNCH_FILES = Path(__file__).parent / "templates" / "classifier" / "accel_configs"
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kMBT]?)")


def run(argv: Sequence[str]) -> int:
    """Print the bytes of each launch file.

    Returns:
        0 if a launch file fits or no GPU was named, else 1.

    Raises:
        ConfigError: the model or the GPU is not known.
    """
    args = _read_arguments(argv)
    usable = math.inf
    if args.gpu:
        usable = usable_bytes(memory_of(args.gpu))
    layouts = LAYOUTS if args.gpus > 1 else ALONE
    if args.rehearses:
        rows = [_rehearsed(name, args) for name in layouts]
    else:
        rows = [_row(name, layout, args) for name, layout in layouts.items()]
    fitting = [row["launch file"] for row in rows if row["on the GPU"] <= usable]

    if args.json:
        print(json.dumps({"rows": rows, "fitting": fitting}, indent=2))
        return int(not fitting)
    how = f"{args.precision}, {args.optimizer}; buffers are an upper bound"
    if args.rehearses:
        how = "rehearsed, at the peak of a step"
    print(
        f"{args.trainable:,} trainable parameters, for each of {args.gpus} GPUs\n"
        f"(files of accel_configs/; {how}):"
    )
    print("\n".join(columns([[name, *(_cell(row[name]) for row in rows)] for name in rows[0]])))
    if not fitting:
        print(f"{args.gpu}: nothing fits; take more GPUs or a smaller batch")
    elif args.gpu:
        print(f"{args.gpu}: take {fitting[0]}, the fastest that fits")
    return int(not fitting)


def _cell(value: str | int | None) -> str:
    """Return a value of a row as text."""
    if isinstance(value, str):
        return PurePath(value).stem
    return "?" if value is None else size(value)


def activation_bytes(config: Any, tokens: int, width: int) -> int:
    """Return the bytes of a transformer's activations after a forward pass.

    A layer keeps 24 vectors of the hidden size for each token, if the attention keeps no scores.
    The logits exist in the compute dtype and twice in full precision.

    Args:
        config: of transformers.
        tokens: of a micro-batch.
        width: bytes of an element in the compute dtype.
    """
    vectors = 24 * config.num_hidden_layers
    logits = (8 + width) * config.vocab_size
    return int(tokens * (vectors * width * config.hidden_size + logits))


def _row(name: str, layout: Layout, args: argparse.Namespace) -> dict[str, Any]:
    """Return the bytes of a GPU under a launch file."""
    states = states_of(
        layout,
        args.trainable,
        args.gpus,
        frozen_bytes=args.frozen_bytes,
        precision=args.precision,
        slots=1 if args.optimizer == "sgd" else 2,
        layers=args.layers,
    )
    host = states.total if layout.offloads else 0
    return {
        "launch file": f"accel_configs/{name}.yaml",
        **asdict(states),
        "activations": args.activations,
        "in host memory": host,
        "on the GPU": states.total - host + states.buffers + (args.activations or 0),
    }


def _rehearsed(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Return the bytes of a GPU at the peak of a step under a launch file."""
    job = Job(
        launch_file=dict(read_document(str(_LAUNCH_FILES / f"{name}.yaml")).data),
        file=f"accel_configs/{name}.yaml",
        words=[f"--config={args.what}"],
        gpus=args.gpus,
        gpu=args.gpu or "H100",
    )
    (found,) = job.rehearse()
    peak = max(found["phases"].values(), key=lambda phase: phase["most"])
    args.trainable = found["trainable"]
    kinds = {kind: peak["at_most"].get(kind, 0) for kind in KINDS}
    return {"launch file": f"accel_configs/{name}.yaml", **kinds, "on the GPU": peak["most"]}


def _read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options with the model's sizes."""
    parser = argparse.ArgumentParser(
        prog="trainer plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("what", type=local_text, metavar="MODEL")
    add("--gpu", help="a name such as H100 or A100-80, or memory such as 24GiB")
    add("--gpus", type=positive_number, default=1, help="number of all GPUs; default 1")
    add("--micro_batch", type=positive_number, default=1, help="examples of a GPU; default 1")
    add("--sequence", type=positive_number, default=1024, help="tokens of an example")
    add("--precision", choices=["no", "bf16", "fp16"], default="bf16")
    add("--optimizer", choices=["adamw", "sgd"], default="adamw")
    add("--json", action="store_true", help="print JSON")
    # 32 layers are assumed for a parameter count.
    parser.set_defaults(layers=32, frozen_bytes=0, activations=None)
    args = parser.parse_args(argv)
    args.rehearses = args.what.endswith((".yaml", ".yml"))

    count = _COUNT.fullmatch(args.what)
    if count:
        args.trainable = round(float(count[1]) * 1000 ** " kMBT".index(count[2]))
    if count or args.rehearses:
        return args

    model = _model_in(args.what)
    args.trainable = 0
    for parameter in model.parameters():
        if parameter.requires_grad:
            args.trainable += parameter.numel()
        else:
            args.frozen_bytes += parameter.nbytes

    shape = getattr(model, "config", None)
    args.layers = getattr(shape, "num_hidden_layers", args.layers)
    width = 4 if args.precision == "no" else 2
    with contextlib.suppress(AttributeError):  # no transformer
        args.activations = activation_bytes(shape, args.micro_batch * args.sequence, width)
    return args


def _model_in(folder: str) -> nn.Module:
    """Build the model of a folder's config on the meta device."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError):
        raise usage_error(
            "",
            folder,
            "no parameter count such as 7B, no folder of a Hugging Face model, no training config",
        ) from None

    name = (config.architectures or ["AutoModelForCausalLM"])[0]
    with torch.device("meta"):
        return model_from_config(getattr(transformers, name), config)  # type: ignore[no-any-return]
