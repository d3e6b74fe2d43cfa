"""The state of optimizer and schedule, as a checkpoint holds it.

torch keeps state for each parameter. An engine may give the optimizer flat groups of fragments
instead. Each ``Shard`` names the tensor that has the state, and the offset in this tensor. State is
a range of elements, as the parameter is, or a single value for the whole parameter (Adam's step).
State of other shapes (factored second moments) cannot be cut: such an optimizer is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..config.plain import plain
from ..data.digest import traces
from ..errors import CheckpointError
from ..optim.groups import settings
from ..strategies import Shard
from ..strategies.first_step import DEPTH, refuse_counters, stepped_copy
from ..strategies.tensors import first_names
from .safetensors_io import CODES

PREFIX = "optimizer."
_WAY_ROUND = "take another optimizer, or keep_last: 0 to train without checkpoints"


@dataclass(frozen=True, kw_only=True)
class OptimizerForm:
    """The state that an optimizer keeps, found out before an engine wraps the optimizer.

    Args:
        kind: the class of the optimizer.
        ranges: state of the parameter's shape: the dtype by the state's key (``exp_avg``).
        values: state of a single value, by key (``step``): whether the value is a tensor.
        together: the keys that a parameter has together, for each sort of parameters.
        groups: of each parameter group the ``names`` of its parameters and its ``settings`` without
            the learning rate.
    """

    kind: str
    ranges: Mapping[str, torch.dtype]
    values: Mapping[str, bool]
    together: Collection[frozenset[str]]
    groups: Sequence[dict[str, Any]]

    @classmethod
    def of(
        cls, model: nn.Module, optimizer: Optimizer, *, saved: bool, device: torch.device
    ) -> OptimizerForm:
        """Find out the state of a fresh optimizer by a step of a copy on small parameters.

        Args:
            model: not wrapped yet.
            saved: whether the state is saved or was. Otherwise any state may be.
            device: on which the optimizer steps, and the copy too: some exist on GPUs only.

        Raises:
            CheckpointError: the state cannot be saved, or the step fails or changes an attribute.
        """
        kind = plain(type(optimizer), compared=True)
        ranges: dict[str, torch.dtype] = {}
        values: dict[str, bool] = {}
        together: set[frozenset[str]] = set()
        stepped, before = _after_step(optimizer, kind, device, saved=saved)
        if saved:
            refuse_counters(stepped, before)
        for parameter, state in stepped.state.items():
            kept = {key: value for key, value in state.items() if value is not None}
            together.add(frozenset(kept))
            for key, value in kept.items():
                is_tensor = isinstance(value, Tensor)
                holds = is_tensor and value.dtype in CODES
                if holds and value.shape == parameter.shape:
                    # If parameters differ in this, the dtype that holds the values of both.
                    ranges[key] = torch.promote_types(value.dtype, ranges.get(key, value.dtype))
                elif (holds and value.dim() == 0) or isinstance(value, int | float):
                    values[key] = is_tensor
                elif saved:
                    found = getattr(value, "shape", type(value).__name__)
                    raise CheckpointError(
                        f"{kind} keeps {key!r} ({found}) for a parameter of shape "
                        f"{tuple(parameter.shape)}, which cannot be saved by ranges of the "
                        f"parameter; {_WAY_ROUND}"
                    )

        groups = groups_of(model, optimizer)
        return cls(kind=kind, ranges=ranges, values=values, together=together, groups=groups)


def _after_step(
    optimizer: Optimizer, kind: str, device: torch.device, *, saved: bool
) -> tuple[Optimizer, dict[str, Any]]:
    """Return what ``stepped_copy`` does, or the optimizer if a step fails and nothing is saved."""
    if optimizer.state:  # some optimizers begin with a state (Adagrad of torch 2.11)
        return optimizer, traces(optimizer, DEPTH)
    try:
        return stepped_copy(optimizer, device)
    except Exception as error:  # an optimizer's step may want anything
        if not saved:
            return optimizer, {}
        way_round = "take another optimizer" if "closure" in str(error) else _WAY_ROUND
        raise CheckpointError(
            f"{kind}: a step on small parameters fails ({type(error).__name__}: {error}), so its "
            f"state is not known; {way_round}"
        ) from error


def groups_of(model: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return ``names`` of the parameters and ``settings`` of each group of an optimizer."""
    names = first_names(model)
    groups = []
    for group in optimizer.param_groups:
        own = [names[id(p)] for p in group["params"] if id(p) in names]
        groups.append({"names": own, "settings": settings(group)})
    return groups


def state_of(
    optimizer: Optimizer, shard: Shard, form: OptimizerForm
) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(kind, tensor)`` of the state of a shard.

    A tensor is a live 1-D range of the shard's own elements, or a scalar for the whole parameter.
    """
    state_key = shard.state_key
    assert state_key is not None
    own = slice(shard.state_offset, shard.state_offset + shard.tensor.numel())
    for key, value in optimizer.state.get(state_key, {}).items():
        has_shape = isinstance(value, Tensor) and value.shape == state_key.shape
        if key in form.ranges and has_shape:
            yield PREFIX + key, value.detach().reshape(-1)[own]
        elif key in form.values:
            yield PREFIX + key, torch.as_tensor(value).detach()
        elif value is not None:
            raise CheckpointError(
                f"the optimizer keeps {key!r} for {shard.name}, and did not at the start"
            )


def schedule_state(schedule: LRScheduler) -> dict[str, Any]:
    """Return class, steps and rates of a schedule, and the rates that the schedule starts from."""
    state = schedule.state_dict()
    counting = state if "last_epoch" in state else state["_schedulers"][0]  # of a ChainedScheduler
    return {
        "kind": type(schedule).__name__,
        "steps": counting["last_epoch"],
        "lr": [float(group["lr"]) for group in schedule.optimizer.param_groups],
        "own": {"base_lrs": [*map(float, state.get("base_lrs", ()))]},
    }
