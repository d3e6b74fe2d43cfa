"""The subject of ``trainer plan``: parameters and activations of a count, a Hugging Face config or
a task.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ...config.train_config import OPTIMIZERS
from ..usage import usage_error
from .costs import Part, elements, parts_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ...config.train_config import TrainConfig
    from .activations import Activations

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kMBT]?)")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_LAYERS = 32  # of a model of which nothing but the size is known: what Llama-7B has


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model to plan for.

    Args:
        unit: elements of the largest layer, which sharding gathers at once.
        activations: of one micro-batch, by whether weights are copied for computing; None where
            unknown.
        notes: what was assumed, for people.
    """

    title: str
    parts: list[Part]
    unit: int
    activations: Mapping[bool, Activations] | None = None
    notes: tuple[str, ...] = ()


def measure_subject(args: argparse.Namespace) -> Subject:
    """Tell the three kinds of ``args.what`` apart, and measure it.

    Raises:
        ConfigError: it is none of them, or cannot be read.
    """
    if count := _COUNT.fullmatch(args.what):
        settle(args)
        if args.lora:
            raise usage_error(
                "lora", args.lora, "needs the shapes of the layers: give a Hugging Face config"
            )
        return _measure_count(round(float(count[1]) * _UNITS[count[2]]), args.what, args.gpus)
    if args.what.endswith((".yaml", ".yml")) or (
        args.what.endswith(".json") and Path(args.what).name != "config.json"
    ):
        return _measure_task(args)
    settle(args)
    return _measure_config(args)


def settle(args: argparse.Namespace, config: TrainConfig | None = None) -> None:
    """Set what was not typed: precision, optimizer and batch are a training config's, where there
    is one.

    Raises:
        ConfigError: its global batch cannot be cut for so many GPUs.
    """
    if config is not None:
        args.micro_batch = config.micro_batch_size
        args.accumulation = args.accumulation or config.accumulation_steps
        args.optimizer = args.optimizer or (
            config.optimizer if config.optimizer in OPTIMIZERS else None
        )
        args.precision = args.precision or config.mixed_precision
        unit = config.micro_batch_size * (args.accumulation or 1) * args.gpus
        if config.global_batch_size is not None and config.global_batch_size % unit:
            parts = f"micro_batch_size {config.micro_batch_size} x accumulation {args.accumulation or 1}"
            rule = f"global_batch_size {config.global_batch_size} must be a multiple of {parts} x gpus = {unit}"
            raise usage_error("gpus", args.gpus, f"{rule}; take fewer GPUs, or change {args.what}")
        args.accumulation = args.accumulation or (config.global_batch_size or unit) // unit
    args.assumed = (
        [] if args.precision else ["precision bf16 is assumed; --precision no or fp16 says another"]
    )
    args.precision = args.precision or "bf16"
    args.optimizer = args.optimizer or "adamw"
    args.accumulation = args.accumulation or 1


def _measure_count(total: int, text: str, gpus: int) -> Subject:
    notes = (
        f"activations: not known from a count; buffers: layers of 1/{_LAYERS} of the model are assumed.",
        "Give a Hugging Face config instead to have both.",
    )
    share = -(
        -total // gpus
    )  # a count says nothing of the tensors: as if each GPU had its own, none on a border
    parts = [Part(numel=share, rows=share, count=gpus)]
    return Subject(
        title=f"{text} parameters", parts=parts, unit=max(1, total // _LAYERS), notes=notes
    )


def _measure_config(args: argparse.Namespace) -> Subject:
    import torch
    import transformers
    from torch._subclasses.fake_tensor import FakeTensorMode

    path = Path(args.what)
    try:
        config = transformers.AutoConfig.from_pretrained(
            path.parent if path.name == "config.json" else args.what
        )
    except (OSError, ValueError) as error:
        rule = f"neither a parameter count, a training config nor a Hugging Face config: {str(error).splitlines()[0]}"
        raise usage_error("what", args.what, rule) from None
    config.use_cache = False
    longest = min(getattr(config, "max_position_embeddings", None) or 512, 4096)
    args.sequence = args.sequence or longest
    names = getattr(config, "architectures", None) or ["AutoModelForCausalLM"]
    model_class = getattr(transformers, names[0], transformers.AutoModelForCausalLM)
    from_config = getattr(model_class, "_from_config", None) or model_class.from_config
    ids_shape = (args.micro_batch, args.sequence)

    def build(dtype: torch.dtype | None) -> tuple[nn.Module, Callable[[], Tensor]]:
        model = from_config(config, dtype=dtype or torch.float32)
        ids = torch.zeros(ids_shape, dtype=torch.long)

        def forward() -> Tensor:
            scores = model(input_ids=ids)[0].float().flatten(0, -2)
            return torch.nn.functional.cross_entropy(scores, ids.flatten()[: len(scores)])

        return model, forward

    # Fake tensors have shapes and no memory, so that 70 billion parameters take seconds on a
    # laptop.
    with FakeTensorMode():
        return _measure_model(f"{args.what} ({names[0]})", build, args)


def _measure_task(args: argparse.Namespace) -> Subject:
    from torch.utils.data import default_collate

    from ...data.batches import is_stream
    from ...data.seeds import generator_of
    from ...script import load_config, load_task
    from ...strategies.base import compute_in
    from ...task import split_loss
    from ..whole_model import build_whole

    loaded = load_config(["--config", args.what])
    task, config = load_task(loaded)
    settle(args, config)
    data = task.build_data()
    rows = (
        iter(data.train)
        if is_stream(data.train)
        else map(data.train.__getitem__, range(len(data.train)))
    )
    samples = list(itertools.islice(itertools.cycle(rows), args.micro_batch))
    if data.augment:
        samples = [data.augment(sample, generator_of(0)) for sample in samples]
    batch = (data.collate or default_collate)(samples)

    def build(dtype: torch.dtype | None) -> tuple[nn.Module, Callable[[], Tensor]]:
        model = build_whole(task)
        if dtype is not None:
            compute_in(model.to(dtype), dtype)
        return model, lambda: split_loss(task.training_step(model, batch))[0]

    return _measure_model(loaded.config.task, build, args)


def _measure_model(
    title: str,
    build: Callable[[torch.dtype | None], tuple[nn.Module, Callable[[], Tensor]]],
    args: argparse.Namespace,
) -> Subject:
    """Measure a model.

    Args:
        build: returns a model in full precision, or one that is kept in the dtype given, and its
            forward pass.
    """
    import torch

    from ...building.model import count_parameters
    from .activations import largest_unit, probe

    dtype = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
    model, forward = build(None)
    unit, parts, notes = largest_unit(model), parts_of(model), []
    if args.lora:
        parts = _with_adapters(model, args.lora, width=4 if dtype is None else 2)
        notes.append(
            f"LoRA of rank {args.lora} on the linear layers of the blocks; the rest is frozen in the compute dtype."
        )
    kept: dict[bool, Activations] = {}
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        kept[True] = probe(model, forward)
    kept[False] = kept[True] if dtype is None else probe(*build(dtype))
    trainable, packed = (
        elements(parts, trainable=True),
        count_parameters(model) - elements(parts_of(model)),
    )
    return Subject(
        title=f"{title}: {elements(parts) + packed:,} parameters, {trainable:,} of them learn",
        parts=parts,
        unit=unit,
        activations=kept,
        notes=(
            *notes,
            "activations: what autograd saved in one probing forward pass, and the largest of them again.",
        ),
    )


def _with_adapters(model: nn.Module, rank: int, *, width: int) -> list[Part]:
    """List the parameters of a model that is frozen, but for LoRA adapters on the linear layers of
    its blocks.
    """
    import torch

    from .activations import blocks_of

    adapters = []
    for block in blocks_of(model):
        for module in block.modules():
            if isinstance(module, torch.nn.Linear):
                adapters += [Part(numel=rank * module.in_features, rows=rank)]
                adapters += [Part(numel=rank * module.out_features, rows=module.out_features)]
    if not adapters:
        raise usage_error("lora", rank, "the model has no linear layers in repeated blocks")
    return [*(replace(part, trainable=False, width=width) for part in parts_of(model)), *adapters]
