"""Formulas for what each strategy costs: bytes that a rank holds, and bytes that it sends.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models",
section 3 for memory, section 7 for communication; and the paper's own table.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

_WIDTH = {"no": 4, "bf16": 2, "fp16": 2}
# DeepSpeed's own defaults, in elements (deepspeed/runtime/zero/config.py).
BUCKET_ELEMENTS = 500_000_000
PREFETCH_ELEMENTS = 50_000_000
PERSISTENT_ELEMENTS = 100_000
# Strategies and what they offload, in the order in which the planner offers them: the fastest
# first, where they fit.
OFFERED = (
    ("ddp", "none"), ("zero1", "none"), ("zero2", "none"), ("fsdp", "none"), ("zero3", "none"),
    ("zero2", "optimizer"), ("zero3", "optimizer"), ("zero3", "all"), ("fsdp", "all"),
)  # fmt: skip
OFFERED_ALONE = (
    ("single", "none"),
    ("zero2", "optimizer"),
    ("zero3", "optimizer"),
    ("zero3", "all"),
)  # for one GPU
# The stage of the ZeRO paper that divides the model states as a strategy does.
PAPER_STAGE = {"single": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}
# The strategies that keep the weights in full precision and compute with copies (autocast), which
# the backward needs.
COMPUTE_IN_COPIES = ("single", "ddp")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A parameter tensor.

    Args:
        numel: its elements; ``rows``: its first dimension (1 for a scalar).
        trainable: whether it has a gradient and optimizer state.
        width: bytes an element of a frozen one; trainable ones are kept in full precision.
        count: how many such tensors there are.
    """

    numel: int
    rows: int = 1
    trainable: bool = True
    width: int = 4
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Case:
    """The settings of a training that decide what it costs.

    Args:
        slots: full-precision tensors per parameter that the optimizer keeps (Adam 2, momentum 1).
        offload: what lies in host memory: ``none``, ``optimizer`` (its state and gradients) or
            ``all``.
        sync_each_batch: whether gradients are exchanged in each micro-batch, and none wait whole.
        overlap: whether a second exchange buffer is filled meanwhile.
        decays: whether weights decay, and vectors (norms and biases) are a group of their own for
            it.
        reshard: whether gathered layers are let go after the forward pass and gathered again in the
            backward pass.
        unit: elements of the largest group of parameters that is gathered at once; 0: the whole
            model.
        bucket: elements of the buffer in which gradients are exchanged; None for the engine's
            default.
        copies: groups of ranks that hold a whole model each, divided (HSDP).
    """

    strategy: str
    world_size: int
    mixed_precision: str = "no"
    slots: int = 2
    accumulation_steps: int = 1
    offload: str = "none"
    reshard: bool = True
    unit: int = 0
    bucket: int | None = None
    copies: int = 1
    sync_each_batch: bool = False
    overlap: bool = False
    decays: bool = True

    @property
    def compute_width(self) -> int:
        """Return the bytes of an element in the compute dtype."""
        return _WIDTH[self.mixed_precision]

    @property
    def ring(self) -> float:
        """Return the share of a tensor that a rank sends in a reduce-scatter or all-gather: (ranks
        - 1) / ranks.
        """
        return (self.group - 1) / self.group

    @property
    def group(self) -> int:
        """Return the ranks among which a tensor is divided, or exchanged."""
        return self.world_size // self.copies


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The bytes of one rank.

    Args:
        parameters, gradients, optimizer: the model states; the optimizer's include a full-precision
            copy, if any.
        buffers: exchange buffers and gathered layers, which come and go within a step.
        host: how many of the model states' bytes lie in host memory.
        snapshot: host memory that a checkpoint takes while it is written: the rank's part of
            parameters and moments.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int = 0
    host: int = 0
    snapshot: int = 0

    @property
    def states(self) -> int:
        """Sum parameters, gradients and optimizer state, wherever they lie."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def device(self) -> int:
        """Sum what lies on the device, buffers included."""
        return self.states - self.host + self.buffers


def case_of(plan: Mapping[str, Any], *, slots: int = 2) -> Case:
    """Return the case of a run from its plan, as ``Plan.as_dict`` gives it and plan.json holds it."""
    zero = plan["deepspeed"].get("zero_optimization", {})
    devices = [
        (zero.get(key) or {}).get("device", "none")
        for key in ("offload_optimizer", "offload_param")
    ]
    settings = plan.get("optimizer_settings")  # which older plans do not say
    everything = devices[1] != "none" or bool(plan["fsdp"].get("cpu_offload"))
    return Case(
        strategy=plan["strategy"],
        world_size=plan["world_size"],
        mixed_precision=plan["mixed_precision"],
        slots=slots,
        accumulation_steps=plan["accumulation_steps"],
        offload="all" if everything else "optimizer" if devices[0] != "none" else "none",
        reshard=plan["fsdp"].get("reshard_after_forward") is not False,
        bucket=zero.get("reduce_bucket_size"),
        copies=plan["fsdp"].get("dp_replicate_size", 1),
        sync_each_batch=bool(plan.get("sync_each_batch")),
        overlap=bool(zero.get("overlap_comm")),
        decays=not (isinstance(settings, Mapping) and settings.get("weight_decay") == 0),
    )


def parts_of(model: nn.Module) -> list[Part]:
    """List the parameters of an unprepared model, shared ones once."""
    return [
        Part(
            numel=parameter.numel(),
            rows=parameter.shape[0] if parameter.dim() else 1,
            trainable=parameter.requires_grad,
            width=4 if parameter.requires_grad else parameter.element_size(),
        )
        for parameter in model.parameters()
    ]


def elements(parts: Iterable[Part], *, trainable: bool = False) -> int:
    """Count the elements of all parameters, or of the trainable ones only."""
    return sum(part.numel * part.count for part in parts if part.trainable or not trainable)


def footprint(case: Case, parts: Sequence[Part]) -> Footprint:
    """Compute the bytes that a rank holds (the largest rank, where they differ), without
    activations.
    """
    saved = 4 * elements(parts, trainable=True) * (1 + case.slots) // case.world_size
    return dataclasses.replace(_FOOTPRINTS[case.strategy](case, parts), snapshot=saved)


def sent_bytes(case: Case, parameters: int, trainable: int) -> int:
    """Compute the bytes that a rank sends in one optimizer step, over ring algorithms.

    Args:
        parameters, trainable: elements of all parameters, and of the trainable ones.
    """
    # Groups add up their parts of the gradients in full precision: an all-reduce is two rings.
    between = 2 * 4 * trainable / case.group * (case.copies - 1) / case.copies
    return int(case.ring * _SENT[case.strategy](case, parameters, trainable) + between)


def sent_by_plan(plan: Mapping[str, Any]) -> int | None:
    """Compute ``sent_bytes`` of a run from its plan.json; None where that lacks something, or
    layers are divided.
    """
    needed = {
        "strategy",
        "world_size",
        "mixed_precision",
        "accumulation_steps",
        "fsdp",
        "deepspeed",
    }
    if (
        not plan.keys() >= needed | {"parameters", "trainable_parameters"}
        or plan["fsdp"].get("tp_size", 1) > 1
    ):
        return None
    return sent_bytes(case_of(plan), plan["parameters"], plan["trainable_parameters"])


def _replicated_footprint(case: Case, parts: Sequence[Part]) -> Footprint:
    trainable = elements(parts, trainable=True)
    # The exchange buckets stay; before the boundary (no_sync) gradients gather beside them.
    copies = 2 if case.strategy == "ddp" and case.accumulation_steps > 1 else 1
    return Footprint(
        parameters=_kept_whole(parts),
        gradients=4 * trainable * copies,
        optimizer=4 * trainable * case.slots,
    )


def _replicated_sent(case: Case, parameters: int, trainable: int) -> int:
    # One all-reduce of the gradients a step (no_sync before): a reduce-scatter and an all-gather.
    return 2 * 4 * trainable


def _fsdp_footprint(case: Case, parts: Sequence[Part]) -> Footprint:
    # Rank 0 has the most: ceil(rows / ranks) rows of each tensor.
    mine = [
        dataclasses.replace(p, numel=-(-p.rows // case.group) * (p.numel // max(1, p.rows)))
        for p in parts
    ]
    trainable = elements(mine, trainable=True)
    # Before the boundary (no_sync) gradients are neither reduced nor cut.
    whole = case.accumulation_steps > 1 and not case.sync_each_batch
    gradients = elements(parts, trainable=True) if whole else trainable
    unit = min(case.unit or elements(parts), elements(parts))
    states = Footprint(
        parameters=_kept_whole(mine), gradients=4 * gradients, optimizer=4 * trainable * case.slots
    )
    return dataclasses.replace(
        states,
        # A layer that computes and the next one on its way; the gradients of one before they are
        # scattered.
        buffers=unit * (3 * case.compute_width + 4),
        host=states.states if case.offload == "all" else 0,
    )


def _fsdp_sent(case: Case, parameters: int, trainable: int) -> int:
    # Parameters are gathered for each forward, and again for the backward if they were let go;
    # gradients are reduced in full precision, at the boundary only unless they are to be in each
    # micro-batch.
    gathers = case.accumulation_steps * (2 if case.reshard else 1)
    exchanges = case.accumulation_steps if case.sync_each_batch else 1
    return gathers * case.compute_width * parameters + exchanges * 4 * trainable


def _zero_footprint(case: Case, parts: Sequence[Part]) -> Footprint:
    stage, world, width = PAPER_STAGE[case.strategy], case.world_size, case.compute_width
    # Stage 3 cuts each tensor, the others the flattened groups: what the last rank lacks is filled
    # up.
    cut = [dataclasses.replace(part, numel=-(-part.numel // world)) for part in parts]
    mine = elements(cut, trainable=True)
    model = _computed_with(cut if stage == 3 else parts, width)
    if stage == 3:  # small tensors stay whole between steps, beside their slices
        model += _computed_with(
            (part for part in parts if part.numel <= PERSISTENT_ELEMENTS), width
        )
    # Micro-batches add up in full precision.
    kept_in = 4 if case.accumulation_steps > 1 else width
    gradients = kept_in * (elements(parts, trainable=True) if stage < 2 else mine)
    if (
        stage == 2 and kept_in == width
    ):  # a tensor that lies across a border stays whole on both sides of it
        gradients = width * _most_touched(parts, world, case.decays)
    # It keeps its own full-precision copy of the parameters, also where they are in full precision
    # already.
    optimizer = 4 * mine * (1 + case.slots)
    host = 0
    if (
        case.offload != "none"
    ):  # the optimizer's gradients in full precision, and what goes back to the device
        moved = 4 * mine + (width * mine if stage < 3 else 0)
        host = optimizer + moved + (gradients if stage == 3 else 0)
        gradients += moved
    if case.offload == "all":
        host += _computed_with(cut, width)
    bucket = case.bucket or min(BUCKET_ELEMENTS, elements(parts))
    # What is exchanged at once: a bucket, or a larger gradient alone.
    sent = max(
        min(bucket, elements(parts, trainable=True)),
        max((p.numel for p in parts if p.trainable), default=0),
    )
    unit = min(case.unit or elements(parts), elements(parts))
    if stage == 3:  # the bucket in full precision, and its parts put in order for the ranks
        buffers = 4 * bucket + 4 * sent + width * min(unit + PREFETCH_ELEMENTS, elements(parts))
    else:  # the bucket, a copy of it in one piece, and that in full precision
        kept_in = kept_in if stage == 1 else width
        buffers = (
            kept_in * bucket * (2 if case.overlap else 1)
            + (4 if kept_in == 4 else kept_in + 4) * sent
        )
    return Footprint(
        parameters=model, gradients=gradients, optimizer=optimizer, buffers=buffers, host=host
    )


def _zero_sent(case: Case, parameters: int, trainable: int) -> int:
    # Gradients are exchanged in full precision: by stage 1 at the boundary, by the others in each
    # backward. The paper reduces each to its owner (one model); stages 1 and 2 of the engine
    # all-reduce whole buckets, twice as much: its default use_multi_rank_bucket_allreduce, and what
    # benchmarks/traffic.py measured.
    stage, times = PAPER_STAGE[case.strategy], case.accumulation_steps
    passes = 1 if stage == 3 else 2
    reduced = passes * 4 * trainable * (times if stage >= 2 else 1)
    gathers, gathered = (2 * times, parameters) if stage == 3 else (1, trainable)
    return reduced + gathers * case.compute_width * gathered


_ZERO = ("zero1", "zero2", "zero3")
_FOOTPRINTS: dict[str, Callable[[Case, Sequence[Part]], Footprint]] = {
    "single": _replicated_footprint,
    "ddp": _replicated_footprint,
    "fsdp": _fsdp_footprint,
    **dict.fromkeys(_ZERO, _zero_footprint),
}
_SENT: dict[str, Callable[[Case, int, int], int]] = {
    "single": _replicated_sent,
    "ddp": _replicated_sent,
    "fsdp": _fsdp_sent,
    **dict.fromkeys(_ZERO, _zero_sent),
}


def _most_touched(parts: Iterable[Part], shares: int, decays: bool) -> int:
    """Count the elements of the trainable tensors that one of ``shares`` equal slices touches; the
    largest count.

    Tensors lie one after the other; where weights decay, vectors (norms and biases) in a group of
    their own.
    """
    most, groups = [0] * shares, defaultdict[bool, list[int]](list)
    for part in parts:
        if part.trainable:
            groups[decays and part.rows == part.numel] += [part.numel] * part.count
    for sizes in groups.values():
        share, start = max(1, -(-sum(sizes) // shares)), 0
        for size in sizes:
            for slice_ in range(start // share, -(-(start + size) // share)):
                most[slice_] += size
            start += size
    return max(most)


def _kept_whole(parts: Iterable[Part]) -> int:
    """Count the bytes of unsharded parameters: trainable ones in full precision, frozen ones in
    their own width.
    """
    return sum(part.numel * part.count * (4 if part.trainable else part.width) for part in parts)


def _computed_with(parts: Iterable[Part], width: int) -> int:
    """Count the bytes of parameters that are kept in the dtype of computing, which quantized ones
    are not.
    """
    return sum(
        part.numel * part.count * (part.width if part.width == 1 else width) for part in parts
    )


def paper_bytes(stage: int, elements: int, world_size: int, *, k: int = 12) -> float:
    """Compute table 1 of the ZeRO paper: 2 bytes a parameter, 2 a gradient, ``k`` for Adam; stage 0
    replicates.
    """
    model_states = (
        2 * elements,
        2 * elements,
        k * elements,
    )  # divided from the last to the first, a stage each
    return sum(
        part / world_size if stage >= 3 - place else part for place, part in enumerate(model_states)
    )
