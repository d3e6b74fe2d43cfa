"""Measure the model of ``trainer plan``: its parameters, and the activations of a micro-batch.

It is a parameter count, a Hugging Face config, or the task of a training config.
"""

from __future__ import annotations

import argparse
import itertools
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...config.train_config import OPTIMIZERS
from ..usage import usage_error
from .costs import Part, elements, parts_of

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from ...config.train_config import TrainConfig
    from ...task import Data
    from .activations import Activations

_COUNT = re.compile(r"(\d+(?:\.\d+)?)\s*([kMBT]?)")
_UNITS = {"": 1, "k": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
_LAYERS = 32  # assumed where only the size of a model is known: what Llama-7B has


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A model to plan for.

    Args:
        title: for people.
        parts: its parameters.
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
    """Measure what the user named, and fill in the options that were not typed.

    Args:
        args: of the command; ``what`` is a count, a Hugging Face config or a training config.

    Raises:
        ConfigError: it is none of them, or cannot be read.
    """
    count = _COUNT.fullmatch(args.what)
    if count:
        settle(args)
        if args.lora:
            rule = "needs the shapes of the layers: give a Hugging Face config"
            raise usage_error("lora", args.lora, rule)
        number, unit = count.groups()
        return _measure_count(round(float(number) * _UNITS[unit]), args.what, args.gpus)

    is_yaml = args.what.endswith((".yaml", ".yml"))
    is_json = args.what.endswith(".json") and Path(args.what).name != "config.json"
    if is_yaml or is_json:
        return _measure_task(args)

    settle(args)
    return _measure_config(args)


def settle(args: argparse.Namespace, config: TrainConfig | None = None) -> None:
    """Fill in the options that were not typed: by the training config, or else by defaults.

    Args:
        args: of the command; ``assumed`` becomes the notes on what was assumed.
        config: the training config, if there is one.

    Raises:
        ConfigError: its global batch cannot be cut for so many GPUs.
    """
    if config is not None:
        _settle_by_config(args, config)

    args.assumed = []
    if not args.precision:
        args.precision = "bf16"
        args.assumed.append("precision bf16 is assumed; --precision no or fp16 says another")
    args.optimizer = args.optimizer or "adamw"
    args.accumulation = args.accumulation or 1


def _settle_by_config(args: argparse.Namespace, config: TrainConfig) -> None:
    args.micro_batch = config.micro_batch_size
    args.accumulation = args.accumulation or config.accumulation_steps
    args.precision = args.precision or config.mixed_precision
    if not args.optimizer and config.optimizer in OPTIMIZERS:
        args.optimizer = config.optimizer

    if config.global_batch_size is None:
        args.accumulation = args.accumulation or 1
        return
    accumulation = args.accumulation or 1
    unit = config.micro_batch_size * accumulation * args.gpus
    if config.global_batch_size % unit:
        rule = (
            f"global_batch_size {config.global_batch_size} must be a multiple of "
            f"micro_batch_size {config.micro_batch_size} x accumulation {accumulation} "
            f"x gpus = {unit}; take fewer GPUs, or change {args.what}"
        )
        raise usage_error("gpus", args.gpus, rule)
    args.accumulation = args.accumulation or config.global_batch_size // unit


def _measure_count(total: int, text: str, gpus: int) -> Subject:
    # A count says nothing of the tensors: as if each GPU had tensors of its own, none on a border.
    elements_per_gpu = -(-total // gpus)  # rounded up
    notes = (
        "activations: not known from a count; buffers: layers of "
        f"1/{_LAYERS} of the model are assumed.",
        "Give a Hugging Face config instead to have both.",
    )
    return Subject(
        title=f"{text} parameters",
        parts=[Part(numel=elements_per_gpu, rows=elements_per_gpu, count=gpus)],
        unit=max(1, total // _LAYERS),
        notes=notes,
    )


def _measure_config(args: argparse.Namespace) -> Subject:
    """Measure the model of a Hugging Face config on tokens of one value."""
    import torch
    import transformers

    from ...private.torch import fake_tensors
    from ...private.transformers import model_from_config

    path = Path(args.what)
    try:
        config = transformers.AutoConfig.from_pretrained(
            path.parent if path.name == "config.json" else args.what
        )
    except (OSError, ValueError) as error:
        rule = "neither a parameter count, a training config nor a Hugging Face config: "
        rule += str(error).splitlines()[0]
        raise usage_error("what", args.what, rule) from None

    config.use_cache = False
    longest = getattr(config, "max_position_embeddings", None) or 512
    args.sequence = args.sequence or min(longest, 4096)
    ids_shape = (args.micro_batch, args.sequence)
    names = getattr(config, "architectures", None) or ["AutoModelForCausalLM"]
    model_class = getattr(transformers, names[0], transformers.AutoModelForCausalLM)

    def build(dtype: torch.dtype | None) -> tuple[nn.Module, Callable[[], Tensor]]:
        model = model_from_config(model_class, config, dtype=dtype or torch.float32)
        ids = torch.zeros(ids_shape, dtype=torch.long)
        more = {}
        if "ForCausalLM" in type(model).__name__:
            length = ids.shape[1]
            halves = torch.cat([torch.arange(length // 2), torch.arange(length - length // 2)])
            more = {"position_ids": halves.expand_as(ids)}  # two documents in a row

        def forward() -> Tensor:
            scores = model(input_ids=ids, **more)[0].float().flatten(0, -2)
            return torch.nn.functional.cross_entropy(scores, ids.flatten()[: len(scores)])

        return model, forward

    # Fake tensors have shapes and no memory, so that 70 billion parameters take seconds on a
    # laptop.
    with fake_tensors():
        return _measure_model(f"{args.what} ({names[0]})", build, args)


def _measure_task(args: argparse.Namespace) -> Subject:
    """Measure the model of a training config on the first samples of its data."""
    from ...data.now import at, first_moment
    from ...losses import split_loss
    from ...script import load_config, load_task
    from ...strategies.base import compute_in
    from ..whole_model import build_whole

    loaded = load_config(["--config", args.what])
    task, config = load_task(loaded)
    settle(args, config)
    moment = first_moment(config.seed)
    with at(moment):
        batch = _first_batch(task.build_data(), args.micro_batch)

    def build(dtype: torch.dtype | None) -> tuple[nn.Module, Callable[[], Tensor]]:
        model = build_whole(task)
        if dtype is not None:
            compute_in(model.to(dtype), dtype)

        def forward() -> Tensor:
            with at(moment):
                loss, _ = split_loss(task.training_step(model, batch))
            return loss

        return model, forward

    return _measure_model(loaded.config.task, build, args)


def _first_batch(data: Data, count: int) -> Any:
    """Return a batch of the first samples; they repeat where the data has fewer."""
    from torch.utils.data import default_collate

    from ...data.batches import is_stream
    from ...data.seeds import generator_of

    if is_stream(data.train):
        rows = iter(data.train)
    else:
        rows = (data.train[number] for number in range(len(data.train)))
    samples = list(itertools.islice(itertools.cycle(rows), count))
    if data.augment:
        samples = [data.augment(sample, generator_of(0)) for sample in samples]
    collate = data.collate or default_collate
    return collate(samples)


def _measure_model(
    title: str,
    build: Callable[[torch.dtype | None], tuple[nn.Module, Callable[[], Tensor]]],
    args: argparse.Namespace,
) -> Subject:
    """Measure a model.

    Args:
        title: of the subject.
        build: return a model and its forward pass; in full precision for None, or with its weights
            in the given dtype.
        args: of the command.
    """
    import torch

    from ...building.model import count_parameters
    from .activations import largest_unit, probe

    dtype = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}[args.precision]
    model, forward = build(None)
    parts = parts_of(model)
    # Quantized weights are packed: a tensor has fewer elements than it stands for.
    packed = count_parameters(model) - elements(parts)
    notes = []
    if args.lora:
        parts = _with_adapters(model, args.lora, width=4 if dtype is None else 2)
        notes.append(
            f"LoRA of rank {args.lora} on the linear layers of the blocks; the rest is frozen in "
            "the compute dtype."
        )

    activations: dict[bool, Activations] = {}
    with torch.autocast("cpu", dtype, enabled=dtype is not None):
        activations[True] = probe(model, forward)
    activations[False] = activations[True]
    if dtype is not None:
        activations[False] = probe(*build(dtype))
    notes.append(
        "activations: what autograd saved in one probing forward pass, and the largest of them "
        "again."
    )

    total = elements(parts) + packed
    trainable = elements(parts, trainable=True)
    return Subject(
        title=f"{title}: {total:,} parameters, {trainable:,} of them trainable",
        parts=parts,
        unit=largest_unit(model),
        activations=activations,
        notes=tuple(notes),
    )


def _with_adapters(model: nn.Module, rank: int, *, width: int) -> list[Part]:
    """Return the parameters of a model with LoRA adapters, all others frozen.

    Args:
        model: whose linear layers in repeated blocks get adapters.
        rank: of the adapters.
        width: bytes of an element of the frozen parameters.
    """
    from torch import nn

    from .activations import blocks_of

    adapters = []
    for block in blocks_of(model):
        for module in block.modules():
            if isinstance(module, nn.Linear):
                adapters.append(Part(numel=rank * module.in_features, rows=rank))
                adapters.append(Part(numel=rank * module.out_features, rows=module.out_features))
    if not adapters:
        raise usage_error("lora", rank, "the model has no linear layers in repeated blocks")

    frozen = [replace(part, trainable=False, width=width) for part in parts_of(model)]
    return [*frozen, *adapters]
