"""``trainer plan WHAT``: which launch files fit the memory of a GPU.

    trainer plan 7.5B --gpus 64 --gpu A100-80
    trainer plan path/to/hf_model --gpus 8 --gpu H100 --micro_batch 2 --sequence 4096
    trainer plan train.yaml --gpus 2 --gpu 24GiB

WHAT is a parameter count, a folder with a Hugging Face model, or a training config.
docs/strategies.md derives the formulas.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from ..private.transformers import model_from_config
from ..reporting.gpus import memory_of
from ..script import load_config, load_task
from ..strategies.memory import ALONE, LAYOUTS, Layout, states_of
from ..text import columns, size
from .usage import local_text, usage_error

_RESERVED = 2**30  # for the driver's context and the workspaces of libraries
_USABLE = 0.92  # the share of the memory that an allocator can fill
_COUNT = re.compile(r"(\d+(?:\.\d+)?)([kMBT]?)")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_LAYERS = 32  # assumed if only a parameter count is known


def run(argv: Sequence[str]) -> int:
    """Print the bytes of each launch file.

    Returns:
        0 if a launch file fits or no GPU was named, 1 if none fits.

    Raises:
        ConfigError: the model or the GPU is not known.
    """
    args = _read_arguments(argv)
    memory = args.gpu and memory_of(args.gpu)
    layouts = LAYOUTS if args.gpus > 1 else ALONE
    rows = [_row(name, layout, args) for name, layout in layouts.items()]
    fitting = []
    if memory:
        usable = _USABLE * memory * 2**30 - _RESERVED
        fitting = [row["launch file"] for row in rows if row["on the GPU"] <= usable]

    if args.json:
        print(json.dumps({"rows": rows, "fitting": fitting}, indent=2))
    else:
        print("\n".join(_table(rows, args)))
        if fitting:
            print(f"{args.gpu}: take {fitting[0]}, the fastest that fits")
        elif memory:
            print(f"{args.gpu}: nothing fits; take more GPUs, --recompute or a smaller batch")
    return 1 if memory and not fitting else 0


def activation_bytes(config: Any, tokens: int, width: int, *, recompute: bool = False) -> int:
    """Return the bytes of a transformer's activations after one forward pass.

    A layer keeps 24 vectors of its hidden size for each token, if its attention keeps no scores.
    With recomputation each layer keeps its input, and one layer the rest. The logits exist in the
    compute dtype and twice in full precision.

    Args:
        config: of transformers.
        tokens: of one micro-batch.
        width: bytes of an element in the compute dtype.
    """
    vector = width * config.hidden_size
    vectors = 24 * config.num_hidden_layers
    if recompute:
        vectors = 24 + config.num_hidden_layers
    return int(tokens * (vectors * vector + (8 + width) * config.vocab_size))


def _row(name: str, layout: Layout, args: argparse.Namespace) -> dict[str, Any]:
    """Return the bytes of one GPU under a launch file."""
    config = getattr(args.model, "config", None)
    states = states_of(
        layout,
        args.trainable,
        args.gpus,
        frozen_bytes=args.frozen_bytes,
        precision=args.precision,
        slots=1 if args.optimizer == "sgd" else 2,
        accumulates=args.accumulation > 1,
        layers=getattr(config, "num_hidden_layers", _LAYERS),
    )
    activations = None
    if hasattr(config, "hidden_size") and hasattr(config, "vocab_size"):
        tokens = args.micro_batch * args.sequence
        width = 4 if args.precision == "no" else 2
        activations = activation_bytes(config, tokens, width, recompute=args.recompute)

    host = states.total if layout.offloads else 0
    return {
        "launch file": f"accel_configs/{name}.yaml",
        **asdict(states),
        "activations": activations,
        "in host memory": host,
        "on the GPU": states.total - host + states.buffers + (activations or 0),
    }


def _table(rows: Sequence[dict[str, Any]], args: argparse.Namespace) -> list[str]:
    cells = [list(rows[0])]
    for row in rows:
        name, *counts = row.values()
        cells.append([name, *("?" if count is None else size(count) for count in counts)])
    return [
        f"{args.trainable:,} trainable parameters, {args.precision}, {args.optimizer}; "
        f"of each of {args.gpus} GPUs (buffers are an upper bound):",
        *columns(cells),
    ]


def _read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """Return the options, with the model's sizes and the settings of a training config."""
    parser = argparse.ArgumentParser(
        prog="trainer plan",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", type=local_text, metavar="WHAT")
    parser.add_argument("--gpu", help="a name such as H100 or A100-80, or memory such as 24GiB")
    parser.add_argument("--gpus", type=int, default=1, help="number of all GPUs; default 1")
    parser.add_argument("--micro_batch", type=int, default=1, help="examples of a GPU; default 1")
    parser.add_argument("--sequence", type=int, default=1024, help="tokens of an example")
    parser.add_argument("--accumulation", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--precision", choices=["no", "bf16", "fp16"], default="bf16")
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--recompute", action="store_true", help="activation checkpointing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)

    args.model, args.frozen_bytes = None, 0
    count = _COUNT.fullmatch(args.what)
    if count:
        args.trainable = round(float(count[1]) * _UNITS[count[2]])
        return args

    if args.what.endswith((".yaml", ".yml")):
        task, config = load_task(load_config(["--config", args.what]))
        args.micro_batch = config.micro_batch_size
        step = config.micro_batch_size * args.gpus
        args.accumulation = config.accumulation_steps or (config.global_batch_size or 0) // step
        args.precision = config.mixed_precision or args.precision
        args.optimizer = config.optimizer
        args.sequence = getattr(task, "sequence_length", args.sequence)
        task.build_data()  # some models are built from the data
        args.model = task.build_model()
    else:
        args.model = _model_in(args.what)

    parameters = list(args.model.parameters())
    trainable = [parameter for parameter in parameters if parameter.requires_grad]
    args.trainable = sum(parameter.numel() for parameter in trainable)
    args.frozen_bytes = sum(p.nbytes for p in parameters if not p.requires_grad)
    return args


def _model_in(folder: str) -> nn.Module:
    """Build the model of a folder's config on the meta device, without memory."""
    import transformers

    try:
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError):
        rule = (
            "no parameter count such as 7B, no folder of a Hugging Face model, no training config"
        )
        raise usage_error("", folder, rule) from None

    name = (config.architectures or ["AutoModelForCausalLM"])[0]
    with torch.device("meta"):
        return model_from_config(getattr(transformers, name), config)  # type: ignore[no-any-return]
