"""What a strategy costs: bytes that a rank holds, and bytes that it sends.

Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models", section 3 for
memory, section 7 for communication. Each strategy states its own formula (``Strategy.footprint`` and
``Strategy.sent_bytes``); here stand the words that they share, and the paper's own table.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from ..plan import Plan

_WIDTH = {"no": 4, "bf16": 2, "fp16": 2}
# DeepSpeed's own defaults, in elements (deepspeed/runtime/zero/config.py).
BUCKET_ELEMENTS = 500_000_000
PREFETCH_ELEMENTS = 50_000_000
PERSISTENT_ELEMENTS = 100_000
# What the planner offers, the fastest first where they fit: strategy and offload.
OFFERED = (
    ("ddp", "none"), ("zero1", "none"), ("zero2", "none"), ("fsdp", "none"), ("zero3", "none"),
    ("zero2", "optimizer"), ("zero3", "optimizer"), ("zero3", "all"), ("fsdp", "all"),
)  # fmt: skip
# Stage of the ZeRO paper that a strategy's division of the model states is.
PAPER_STAGE = {"single": 0, "ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "fsdp": 3}
# Those that keep the weights in full precision and compute with copies (autocast), which the backward pass needs.
COMPUTE_IN_COPIES = ("single", "ddp")


@dataclass(frozen=True, kw_only=True)
class Part:
    """One parameter tensor.

    Args:
        numel: its elements; ``rows``: its first dimension (1 for a scalar).
        learns: whether it has a gradient and optimizer state.
        width: bytes an element of one that does not learn; those that learn are kept in full precision.
        count: how many such tensors there are.
    """

    numel: int
    rows: int = 1
    learns: bool = True
    width: int = 4
    count: int = 1


@dataclass(frozen=True, kw_only=True)
class Case:
    """How a model is to be trained, as far as it decides what that costs.

    Args:
        slots: full-precision tensors per parameter that the optimizer keeps (Adam 2, momentum 1).
        offload: what lies in host memory: ``none``, ``optimizer`` (its state and gradients) or ``all``.
        reshard: whether gathered layers are let go after the forward pass and gathered again in the backward pass.
        unit: elements of the largest group of parameters that is gathered at once; 0: the whole model.
        bucket: elements of the buffer in which gradients are exchanged; None for the engine's default.
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

    @property
    def compute_width(self) -> int:
        """Bytes of an element in the compute dtype."""
        return _WIDTH[self.mixed_precision]

    @property
    def ring(self) -> float:
        """The share of a tensor that a rank sends in one reduce-scatter or all-gather: (world - 1) / world."""
        return (self.world_size - 1) / self.world_size


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes of one rank.

    Args:
        parameters, gradients, optimizer: the model states; the optimizer's include a full-precision copy, if any.
        buffers: exchange buffers and gathered layers, which come and go within a step.
        host: how many of the model states' bytes lie in host memory.
    """

    parameters: int
    gradients: int
    optimizer: int
    buffers: int = 0
    host: int = 0

    @property
    def states(self) -> int:
        """Parameters, gradients and optimizer state, wherever they lie."""
        return self.parameters + self.gradients + self.optimizer

    @property
    def device(self) -> int:
        return self.states - self.host + self.buffers


def case_of(plan: Plan, slots: int) -> Case:
    """The case of a run that was resolved."""
    zero: dict[str, Any] = plan.deepspeed.get("zero_optimization", {})
    devices = [(zero.get(key) or {}).get("device", "none") for key in ("offload_optimizer", "offload_param")]
    everything = devices[1] != "none" or bool(plan.fsdp.get("cpu_offload"))
    return Case(
        strategy=plan.strategy,
        world_size=plan.world_size,
        mixed_precision=plan.mixed_precision,
        slots=slots,
        accumulation_steps=plan.accumulation_steps,
        offload="all" if everything else "optimizer" if devices[0] != "none" else "none",
        reshard=plan.fsdp.get("reshard_after_forward") is not False,
        bucket=zero.get("reduce_bucket_size"),
    )


def parts_of(model: nn.Module) -> list[Part]:
    """The parameters of an unprepared model, shared ones once."""
    return [
        Part(
            numel=parameter.numel(),
            rows=parameter.shape[0] if parameter.dim() else 1,
            learns=parameter.requires_grad,
            width=4 if parameter.requires_grad else parameter.element_size(),
        )
        for parameter in model.parameters()
    ]


def elements(parts: Iterable[Part], *, learning: bool = False) -> int:
    """Elements of all parameters, or of those that learn."""
    return sum(part.numel * part.count for part in parts if part.learns or not learning)


def most_touched(parts: Iterable[Part], shares: int) -> int:
    """Elements of the learning tensors that one of ``shares`` equal slices touches, for the slice with the most.

    Tensors lie one after the other, vectors (norms and biases, which do not decay) in a group of their own.
    """
    most = [0] * shares
    for vectors in (False, True):
        sizes = [
            part.numel
            for part in parts
            if part.learns and (part.rows == part.numel) == vectors
            for _ in range(part.count)
        ]
        share, start = max(1, -(-sum(sizes) // shares)), 0
        for size in sizes:
            for slice_ in range(start // share, -(-(start + size) // share)):
                most[slice_] += size
            start += size
    return max(most)


def kept_whole(parts: Iterable[Part]) -> int:
    """Bytes of parameters kept by replicas: full precision for what learns, its own width for what does not."""
    return sum(part.numel * part.count * (4 if part.learns else part.width) for part in parts)


def paper_bytes(stage: int, elements: int, world_size: int, *, k: int = 12) -> float:
    """Table 1 of the ZeRO paper: 2 bytes a parameter, 2 a gradient, ``k`` for what Adam keeps; stage 0 replicates."""
    parameters, gradients, optimizer = 2 * elements, 2 * elements, k * elements
    of: Sequence[float] = [parameters, gradients, optimizer]
    return sum(part / world_size if stage >= 3 - place else part for place, part in enumerate(of))
