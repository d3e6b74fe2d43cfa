"""The collectives of a rank: kind, group, bytes and line of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..distributed.started_by import env_number
from ..reporting.gpus import link_of
from ..text import size
from .lines import line

# Without hyphens the beginnings of names in torch.ops.c10d and torch.ops._c10d_functional.
_KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "broadcast",
    "barrier",
    "reduce",
    "gather",
    "scatter",
    "send",
    "recv",
)
_LATENCY = 20e-6  # seconds from the call of a small collective to its end
_NETWORK = 50e9  # bytes a second of a GPU's share of the network: 400 Gb/s


class Collective(NamedTuple):
    """A collective of a rank. The kind "" stands for no collective.

    Args:
        ranks: how many take part, on how many ``machines``.
        bytes: of the whole: the gathered, the unreduced or the reduced tensors.
        line: of Python that asked.
    """

    kind: str = ""
    dtype: str = ""
    ranks: int = 1
    bytes: int = 0
    machines: int = 1
    line: str = ""

    def __str__(self) -> str:
        """Return the collective for people."""
        if not self.kind:
            return "ended"
        return f"{self.kind} of {size(self.bytes)} over {self.ranks} ranks at {self.line}"

    @property
    def signature(self) -> tuple[Any, ...]:
        """Return the part that must be the same on the ranks that take part."""
        return self[:3] if self.kind == "all-to-all" else self[:4]

    def seconds(self, gpu: str) -> float:
        """Estimate the time on a ring of the group's links, if nothing else uses these links."""
        rate = link_of(gpu) if self.machines == 1 else _NETWORK
        times = 2 if self.kind == "all-reduce" else 1
        return _LATENCY + times * self.bytes * (1 - 1 / self.ranks) / rate


def collective_of(function: Any, arguments: Sequence[Any], result: Any) -> Collective | None:
    """Return the collective of an operation, or None. The agreement over gloo is left out."""
    space, _, name = function._schema.name.partition("::")
    if "c10d" not in space:
        return None
    group = _group_of(function, arguments)
    if group is None or group.group_desc == "agreement":
        return None

    name = name.replace("_", "")
    kind = next(kind for kind in _KINDS if name.startswith(kind.replace("-", "")))
    sides = [
        [leaf for leaf in tree_leaves(side) if isinstance(leaf, Tensor)]
        for side in (*arguments[:2], result)
    ]
    tensors = sides[0] or sides[1]
    local = env_number("LOCAL_WORLD_SIZE")
    return Collective(
        kind=kind,
        dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors else "",
        ranks=group.size(),
        bytes=max(sum(tensor.nbytes for tensor in side) for side in sides),
        machines=len({rank // local for rank in dist.get_process_group_ranks(group)}),
        line=line(of_engine=True),
    )


def _group_of(function: Any, arguments: Sequence[Any]) -> Any:
    """Return the process group among the arguments of an operation. None if there is none."""
    c10d: Any = dist.distributed_c10d
    for argument, value in zip(function._schema.arguments, arguments, strict=False):
        if argument.name == "process_group":
            return dist.ProcessGroup.unbox(value)
        if argument.name == "group_name":
            return c10d._resolve_process_group(value)
    return None
