"""The state of optimizer and schedule, as a checkpoint holds it.

torch keeps state for each parameter. An engine may give the optimizer flat groups of fragments
instead. Each ``Shard`` names the tensor that has the state, and the offset in this tensor. State is
a range of elements, as the parameter is, or a single value for the whole parameter (Adam's step).
State of other shapes (factored second moments) cannot be cut: such an optimizer is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ..config.plain import plain
from ..errors import CheckpointError
from ..optim.groups import settings
from ..strategies import Shard
from ..strategies.first_step import refuse_counters, stepped_copy
from ..strategies.tensors import first_names
from .safetensors_io import CODES

PREFIX = "optimizer."
_WAY_ROUND = "take another optimizer, or keep_last: 0 to train without checkpoints"


class OptimizerForm(NamedTuple):
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
        for parameter, state in _after_step(optimizer, kind, device, saved=saved).items():
            kept = {key: value for key, value in state.items() if value is not None}
            together.add(frozenset(kept))
            for key, value in kept.items():
                shape = tuple(value.shape) if getattr(value, "dtype", None) in CODES else None
                if shape == parameter.shape:
                    # If parameters differ in this, the dtype that holds the values of both.
                    ranges[key] = torch.promote_types(value.dtype, ranges.get(key, value.dtype))
                elif shape == () or isinstance(value, int | float):
                    values[key] = shape == ()
                elif saved:
                    raise CheckpointError(
                        f"{kind} keeps {key!r} ({shape or type(value).__name__}) for a parameter "
                        f"of shape {tuple(parameter.shape)}, which cannot be saved by ranges of "
                        f"the parameter; {_WAY_ROUND}"
                    )

        return cls(kind, ranges, values, together, groups_of(model, optimizer))


def _after_step(
    optimizer: Optimizer, kind: str, device: torch.device, *, saved: bool
) -> Mapping[Tensor, Mapping[str, Any]]:
    """Return the state of a fresh optimizer after a step of a copy, if it can step or is saved."""
    if optimizer.state:  # some optimizers begin with a state (Adagrad of torch 2.11)
        return optimizer.state
    try:
        stepped, before = stepped_copy(optimizer, device)
    except Exception as error:  # an optimizer's step may want anything
        if not saved:
            return {}
        way_round = "take another optimizer" if "closure" in str(error) else _WAY_ROUND
        raise CheckpointError(
            f"{kind}: a step on small parameters fails ({type(error).__name__}: {error}), so its "
            f"state is not known; {way_round}"
        ) from error
    if saved:
        refuse_counters(stepped, before)
    return stepped.state  # type: ignore[no-any-return]


def groups_of(model: nn.Module, optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return ``names`` of the parameters and ``settings`` of each group of an optimizer."""
    names = first_names(model)
    return [
        {
            "names": [names[p] for p in group["params"] if p in names],
            "settings": settings(group),
        }
        for group in optimizer.param_groups
    ]


def state_of(optimizer: Optimizer, shard: Shard, form: OptimizerForm) -> dict[str, Tensor]:
    """Return the state of a shard by kind.

    A tensor is a live 1-D range of the shard's own elements, or a scalar for the whole parameter.
    """
    state_key = shard.state_key
    if state_key is None:
        return {}
    own = slice(shard.state_offset, shard.state_offset + shard.tensor.numel())
    found = {}
    for key, value in optimizer.state.get(state_key, {}).items():
        if key in form.ranges and getattr(value, "shape", None) == state_key.shape:
            found[PREFIX + key] = value.reshape(-1)[own]
        elif key in form.values:
            found[PREFIX + key] = torch.as_tensor(value)
        elif value is not None:
            raise CheckpointError(
                f"the optimizer keeps {key!r} for {shard.name}, and did not at the start"
            )
    return found


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
