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

# Bytes of an element in the compute dtype; in full precision it has 4.
_WIDTH = {"no": 4, "bf16": 2, "fp16": 2}

# DeepSpeed's own defaults, in elements (deepspeed/runtime/zero/config.py).
BUCKET_ELEMENTS = 500_000_000
PREFETCH_ELEMENTS = 50_000_000
PERSISTENT_ELEMENTS = 100_000

# The trainer's defaults on GPUs for the stages that exchange while the backward pass runs:
# ``strategies/deepspeed.py``, which is not imported here, since it takes seconds.
OVERLAPPED = ("zero1", "zero2")
_OVERLAPPED_ELEMENTS = (25_000_000, 200_000_000)

# Strategies and what they offload, in the order in which the planner offers them: the fastest
# first.
OFFERED = (
    ("ddp", "none"),
    ("zero1", "none"),
    ("zero2", "none"),
    ("fsdp", "none"),
    ("zero3", "none"),
    ("zero2", "optimizer"),
    ("zero3", "optimizer"),
    ("zero3", "all"),
    ("fsdp", "all"),
)
# The same for one GPU.
OFFERED_ALONE = (
    ("single", "none"),
    ("zero2", "optimizer"),
    ("zero3", "optimizer"),
    ("zero3", "all"),
)
# The stage of the ZeRO paper that divides the model states as a strategy does.
PAPER_STAGE = {"single": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}
# The strategies that keep the weights in full precision and compute with copies (autocast), which
# the backward pass needs.
COMPUTE_IN_COPIES = ("single", "ddp")


@dataclass(frozen=True, kw_only=True)
class Part:
    """A parameter tensor, or several that are equal.

    Args:
        numel: elements of one.
        rows: its first dimension; 1 for a scalar.
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
        strategy: a key of ``PAPER_STAGE``.
        world_size: processes in all.
        mixed_precision: ``no``, ``bf16`` or ``fp16``.
        slots: full-precision tensors per parameter that the optimizer keeps (Adam 2, momentum 1).
        accumulation_steps: micro-batches of a rank in one optimizer step.
        offload: what is in host memory: ``none``, ``optimizer`` (its state and gradients) or
            ``all``.
        reshard: whether gathered layers are freed after the forward pass and gathered again in the
            backward pass.
        unit: elements of the largest group of parameters that is gathered at once; 0: the whole
            model.
        bucket: elements of the buffer in which gradients are exchanged; None for the engine's
            default.
        copies: groups of ranks that hold a whole model each, divided among them (HSDP).
        sync_each_batch: whether gradients are exchanged in each micro-batch, so that none are kept
            whole until the last.
        overlap: whether a second exchange buffer is filled while the first is sent.
        reduce_width: bytes of an element of a gradient on its way to other ranks.
        gpu: whether it runs on GPUs, where the default of ``bucket`` is another one.
        decays: whether weights decay; vectors (norms and biases) are then a group of their own.
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
    reduce_width: int = 4
    gpu: bool = False
    decays: bool = True

    @property
    def compute_width(self) -> int:
        """Return the bytes of an element in the compute dtype."""
        return _WIDTH[self.mixed_precision]

    @property
    def ring(self) -> float:
        """Return the share of a tensor that a rank sends in a reduce-scatter or an all-gather."""
        return (self.group - 1) / self.group

    @property
    def group(self) -> int:
        """Return the number of ranks among which a tensor is divided, or exchanged."""
        return self.world_size // self.copies


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """The bytes of one rank.

    Args:
        parameters, gradients: of the model.
        optimizer: its state, and the engine's full-precision copy of the parameters, if it has one.
        buffers: exchange buffers and gathered layers, which come and go within a step.
        host: how many bytes of the model states are in host memory.
        snapshot: host memory that a checkpoint takes while it is written: the rank's part of
            parameters and optimizer state.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int = 0
    host: int = 0
    snapshot: int = 0

    @property
    def states(self) -> int:
        """Return parameters, gradients and optimizer state, wherever they are."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def device(self) -> int:
        """Return what is on the device, buffers included."""
        return self.states - self.host + self.buffers


def case_of(plan: Mapping[str, Any], *, slots: int = 2) -> Case:
    """Return the case of a run from its plan, as in ``Plan.as_dict`` and plan.json."""
    fsdp = plan["fsdp"]
    zero = plan["deepspeed"].get("zero_optimization", {})
    settings = plan.get("optimizer_settings")  # plans of older versions lack it
    no_decay = isinstance(settings, Mapping) and settings.get("weight_decay") == 0

    offload = "none"
    if _is_offloaded(zero, "offload_optimizer"):
        offload = "optimizer"
    if _is_offloaded(zero, "offload_param") or fsdp.get("cpu_offload"):
        offload = "all"
    return Case(
        strategy=plan["strategy"],
        world_size=plan["world_size"],
        mixed_precision=plan["mixed_precision"],
        slots=slots,
        accumulation_steps=plan["accumulation_steps"],
        offload=offload,
        reshard=fsdp.get("reshard_after_forward") is not False,
        bucket=zero.get("reduce_bucket_size"),
        copies=fsdp.get("dp_replicate_size", 1),
        sync_each_batch=bool(plan.get("sync_each_batch")),
        overlap=bool(zero.get("overlap_comm")),
        reduce_width=4 if plan.get("precision", {}).get("reduction", "fp32") == "fp32" else 2,
        gpu=plan.get("device") == "cuda",
        decays=not no_decay,
    )


def _is_offloaded(zero: Mapping[str, Any], key: str) -> bool:
    section = zero.get(key) or {}
    return bool(section.get("device", "none") != "none")


def parts_of(model: nn.Module) -> list[Part]:
    """Return the parameters of an unprepared model, shared ones once."""
    parts = []
    for parameter in model.parameters():
        part = Part(
            numel=parameter.numel(),
            rows=parameter.shape[0] if parameter.dim() else 1,
            trainable=parameter.requires_grad,
            width=4 if parameter.requires_grad else parameter.element_size(),
        )
        parts.append(part)
    return parts


def elements(parts: Iterable[Part], *, trainable: bool = False) -> int:
    """Count the elements of all parameters, or of the trainable ones only."""
    return sum(part.numel * part.count for part in parts if part.trainable or not trainable)


def footprint(case: Case, parts: Sequence[Part]) -> Footprint:
    """Compute the bytes that a rank holds, without activations.

    Of the rank that holds most, where they differ.
    """
    found = _FOOTPRINTS[case.strategy](case, parts)
    saved = 4 * elements(parts, trainable=True) * (1 + case.slots) // case.world_size
    return dataclasses.replace(found, snapshot=saved)


def sent_bytes(case: Case, parameters: int, trainable: int) -> int:
    """Compute the bytes that a rank sends in one optimizer step, over ring algorithms.

    Args:
        case: of the training.
        parameters: elements of all parameters.
        trainable: elements of the trainable ones.
    """
    within_group = case.ring * _SENT[case.strategy](case, parameters, trainable)
    # Groups add up their parts of the gradients: an all-reduce is two rings.
    between_groups = (
        2 * case.reduce_width * trainable / case.group * (case.copies - 1) / case.copies
    )
    return int(within_group + between_groups)


def sent_by_plan(plan: Mapping[str, Any]) -> int | None:
    """Compute ``sent_bytes`` of a run from its plan.json.

    Returns:
        None where the plan lacks something, or layers are divided (tensor parallelism): what their
        ranks exchange depends on the batch.
    """
    needed = {
        "strategy",
        "world_size",
        "mixed_precision",
        "accumulation_steps",
        "fsdp",
        "deepspeed",
        "parameters",
        "trainable_parameters",
    }
    if not needed <= plan.keys():
        return None
    if plan["fsdp"].get("tp_size", 1) > 1:
        return None

    return sent_bytes(case_of(plan), plan["parameters"], plan["trainable_parameters"])


def _replicated_footprint(case: Case, parts: Sequence[Part]) -> Footprint:
    trainable = elements(parts, trainable=True)
    # The exchange buckets stay; before the boundary (no_sync) gradients add up beside them.
    copies = 2 if case.strategy == "ddp" and case.accumulation_steps > 1 else 1
    return Footprint(
        parameters=_kept_whole(parts),
        gradients=4 * trainable * copies,
        optimizer=4 * trainable * case.slots,
    )


def _replicated_sent(case: Case, parameters: int, trainable: int) -> int:
    # One all-reduce of the gradients a step (no_sync before): a reduce-scatter and an all-gather.
    return 2 * case.reduce_width * trainable


def _fsdp_footprint(case: Case, parts: Sequence[Part]) -> Footprint:
    # Rank 0 has the most: ceil(rows / ranks) rows of each tensor.
    mine = []
    for part in parts:
        row_length = part.numel // max(1, part.rows)
        mine.append(dataclasses.replace(part, numel=_ceil_div(part.rows, case.group) * row_length))
    trainable = elements(mine, trainable=True)

    # Before the boundary (no_sync) gradients are neither reduced nor divided.
    keeps_whole_gradients = case.accumulation_steps > 1 and not case.sync_each_batch
    gradients = elements(parts, trainable=True) if keeps_whole_gradients else trainable
    states = Footprint(
        parameters=_kept_whole(mine), gradients=4 * gradients, optimizer=4 * trainable * case.slots
    )

    # In the compute dtype a layer that computes, the next one while it is gathered, and the
    # gradients of one; these once more, while they are scattered.
    buffers = _unit(case, parts) * (3 * case.compute_width + case.reduce_width)
    host = states.states if case.offload == "all" else 0
    return dataclasses.replace(states, buffers=buffers, host=host)


def _fsdp_sent(case: Case, parameters: int, trainable: int) -> int:
    # Parameters are gathered for each forward, and again for the backward if they were freed;
    # gradients are reduced at the boundary only unless each micro-batch does.
    gathers = case.accumulation_steps * (2 if case.reshard else 1)
    exchanges = case.accumulation_steps if case.sync_each_batch else 1
    return gathers * case.compute_width * parameters + exchanges * case.reduce_width * trainable


def _zero_footprint(case: Case, parts: Sequence[Part]) -> Footprint:
    stage, width = PAPER_STAGE[case.strategy], case.compute_width
    # Stage 3 divides each tensor, the others the flattened groups; the last slice is padded.
    sliced = []
    for part in parts:
        sliced.append(dataclasses.replace(part, numel=_ceil_div(part.numel, case.world_size)))
    mine = elements(sliced, trainable=True)

    model = _computed_with(parts, width)
    if stage == 3:  # small tensors stay whole between steps, beside their slices
        small = [part for part in parts if part.numel <= PERSISTENT_ELEMENTS]
        model = _computed_with(sliced, width) + _computed_with(small, width)

    gradient_width = _gradient_width(case)
    if stage < 2:
        gradients = gradient_width * elements(parts, trainable=True)
    elif stage == 2 and gradient_width == width:
        # A tensor across the border of two slices stays whole on both sides of it.
        gradients = width * _most_touched(parts, case.world_size, case.decays)
    else:
        gradients = gradient_width * mine

    # It keeps its own full-precision copy of the parameters, also where they are in full precision
    # already.
    optimizer = 4 * mine * (1 + case.slots)
    host = 0
    if case.offload != "none":
        # The optimizer's gradients in full precision, and (stage 3 has them anyway) the copies of
        # the parameters on their way back to the device.
        moved = 4 * mine
        if stage < 3:
            moved += width * mine
        host = optimizer + moved
        if stage == 3:
            host += gradients
        gradients += moved
    if case.offload == "all":
        host += _computed_with(sliced, width)

    return Footprint(
        parameters=model,
        gradients=gradients,
        optimizer=optimizer,
        buffers=_zero_buffers(case, parts),
        host=host,
    )


def _zero_buffers(case: Case, parts: Sequence[Part]) -> int:
    stage, width = PAPER_STAGE[case.strategy], case.compute_width
    bucket = case.bucket or default_bucket(case, elements(parts))
    exchanged = _exchanged_at_once(bucket, parts)
    if stage == 3:
        return _zero3_buffers(case, parts, bucket, exchanged)

    # The bucket, a copy of it in one piece, and that in the dtype in which it is sent.
    bucket_width = _gradient_width(case) if stage == 1 else width
    buckets = 2 if case.overlap else 1
    copies_width = bucket_width
    if bucket_width != case.reduce_width:
        copies_width += case.reduce_width
    return bucket_width * bucket * buckets + copies_width * exchanged


def _exchanged_at_once(bucket: int, parts: Sequence[Part]) -> int:
    """Count the elements that are exchanged at once: a bucket, or a larger gradient alone."""
    largest = max((part.numel for part in parts if part.trainable), default=0)
    return max(min(bucket, elements(parts, trainable=True)), largest)


def _zero3_buffers(case: Case, parts: Sequence[Part], bucket: int, exchanged: int) -> int:
    """Count the bytes of stage 3's bucket, of the copy that is sent, and of gathered layers.

    Read from DeepSpeed's runtime/zero, and measured by ``tests/workers/memory.py``: the bucket is
    there from the start, in the dtype in which gradients are sent (``ipg_buckets`` in stage3.py);
    the copy has its parts in the order of the ranks, and is there during an exchange only
    (``reduce_scatter_coalesced``).
    """
    total = elements(parts)
    gathered = min(_unit(case, parts) + PREFETCH_ELEMENTS, total)
    gathered_bytes = case.compute_width * gathered
    bucket_bytes = case.reduce_width * bucket
    copy_bytes = case.reduce_width * exchanged

    if elements(parts, trainable=True) > bucket:  # exchanges while layers are gathered
        return bucket_bytes + copy_bytes + gathered_bytes

    # The only exchange comes after the backward pass (``independent_gradient_partition_epilogue``).
    # By then layers are freed, but the first: the hook that frees a layer needs an input with a
    # gradient (``PostBackwardFunctionModule`` in parameter_offload.py).
    first = min(parts[0].numel, _unit(case, parts)) if parts else 0
    if first <= PERSISTENT_ELEMENTS:  # it stays whole, and is counted with the parameters
        first = 0
    first_bytes = case.compute_width * first
    return bucket_bytes + max(copy_bytes + first_bytes, gathered_bytes)


def default_bucket(case: Case, elements: int) -> int:
    """Return the size of the exchange bucket of a model where the launch file gives none."""
    size = BUCKET_ELEMENTS
    if case.gpu and case.strategy in OVERLAPPED:
        smallest, largest = _OVERLAPPED_ELEMENTS
        size = max(smallest, min(largest, elements // 8))
    return min(size, elements)


def _gradient_width(case: Case) -> int:
    """Return the bytes of an element of a gradient, as the ZeRO engine keeps it."""
    # Micro-batches add up in full precision.
    return 4 if case.accumulation_steps > 1 else case.compute_width


def _zero_sent(case: Case, parameters: int, trainable: int) -> int:
    # Gradients are exchanged in full precision: by stage 1 at the boundary, by the others in each
    # backward. The paper reduces each to its owner (one model); stages 1 and 2 of the engine
    # all-reduce whole buckets, twice as much: its default use_multi_rank_bucket_allreduce, and what
    # benchmarks/traffic.py measured.
    stage, micro_batches = PAPER_STAGE[case.strategy], case.accumulation_steps
    passes = 1 if stage == 3 else 2
    exchanges = micro_batches if stage >= 2 else 1
    reduced = passes * case.reduce_width * trainable * exchanges

    # Stage 3 gathers all parameters for each forward and backward pass, the others once a step what
    # the optimizer changed.
    if stage == 3:
        gathered = 2 * micro_batches * parameters
    else:
        gathered = trainable
    return reduced + case.compute_width * gathered


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


def _ceil_div(count: int, parts: int) -> int:
    return -(-count // parts)


def _unit(case: Case, parts: Sequence[Part]) -> int:
    """Return the elements that are gathered at once; of the whole model where the case has none."""
    total = elements(parts)
    return min(case.unit or total, total)


def _most_touched(parts: Iterable[Part], slices: int, decays: bool) -> int:
    """Count the elements of the trainable tensors that a slice touches; of the slice with most.

    Tensors are laid end to end and cut into equal slices; where weights decay, vectors (norms and
    biases) are a group of their own, which is cut so as well.

    Args:
        parts: of the model.
        slices: into which each group is cut.
        decays: whether weights decay.
    """
    groups = defaultdict[bool, list[int]](list)
    for part in parts:
        if part.trainable:
            is_vector = part.rows == part.numel
            groups[decays and is_vector] += [part.numel] * part.count

    touched = [0] * slices
    for sizes in groups.values():
        slice_length = max(1, _ceil_div(sum(sizes), slices))
        begin = 0
        for size in sizes:
            end = begin + size
            for number in range(begin // slice_length, _ceil_div(end, slice_length)):
                touched[number] += size
            begin = end
    return max(touched)


def _kept_whole(parts: Iterable[Part]) -> int:
    """Count the bytes of parameters: trainable ones in full precision, frozen ones as they are."""
    total = 0
    for part in parts:
        width = 4 if part.trainable else part.width
        total += part.numel * part.count * width
    return total


def _computed_with(parts: Iterable[Part], width: int) -> int:
    """Count the bytes of parameters that are kept in the compute dtype; quantized ones are not."""
    total = 0
    for part in parts:
        is_quantized = part.width == 1
        total += part.numel * part.count * (1 if is_quantized else width)
    return total


def paper_bytes(stage: int, elements: int, world_size: int, *, k: int = 12) -> float:
    """Compute table 1 of the ZeRO paper: 2 bytes a parameter, 2 a gradient, ``k`` for Adam.

    Args:
        stage: 0 replicates; 1 divides the optimizer's state, 2 gradients as well, 3 all.
        elements: parameters of the model.
        world_size: ranks among which a stage divides.
        k: bytes of optimizer state a parameter.
    """
    parameters: float = 2 * elements
    gradients: float = 2 * elements
    optimizer: float = k * elements
    if stage >= 1:
        optimizer /= world_size
    if stage >= 2:
        gradients /= world_size
    if stage >= 3:
        parameters /= world_size
    return parameters + gradients + optimizer
