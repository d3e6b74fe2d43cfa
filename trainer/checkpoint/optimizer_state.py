"""The optimizer's state by parameter name, whatever tensors the optimizer itself sees.

torch keeps state for each parameter; an engine may hand it flat groups of fragments instead. Each
``Shard`` says under which tensor its state is held, and where in it. State is a range of elements,
as the parameter is, or one value for a parameter as a whole (Adam's step). State of other shapes
(factored second moments) cannot be cut along a
parameter: such an optimizer is refused before training, for it could only be reset.
"""

from __future__ import annotations

import inspect
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import CheckpointError, LaunchError
from ..strategies import Shard, Strategy
from ..strategies.optimizer_probe import stepped_copy
from ..strategies.tensors import canonical_state, local
from .codec import decode
from .ranges import Ranges
from .safetensors_io import can_hold

PREFIX = "optimizer."
_HIDDEN = ("params", "lr", "initial_lr")  # the learning rate is the schedule's


@dataclass(frozen=True, kw_only=True)
class OptimizerForm:
    """What an optimizer keeps, found out before it is wrapped.

    Args:
        kind: its class.
        ranges: state of the parameter's shape, by its key, with its dtype.
        values: state of one value, by its key; ``True`` where it is a tensor, ``False`` for a plain
            number.
        groups: for each parameter group, the names of its parameters and its settings without the
            learning rate.
    """

    kind: str
    ranges: Mapping[str, torch.dtype]
    values: Mapping[str, bool]
    groups: tuple[dict[str, Any], ...]

    @classmethod
    def of(
        cls, model: nn.Module, optimizer: Optimizer, *, saved: bool, device: torch.device
    ) -> OptimizerForm:
        """Look at a fresh optimizer, and at what one step on small parameters like its own leaves
        in a copy of it.

        Args:
            saved: whether its state was or will be; otherwise only its groups are looked at.
            device: where it will step, and so where it is tried: some optimizers exist on GPUs
                only.

        Raises:
            LaunchError: its step wants a closure, which no loop here gives.
            CheckpointError: its state cannot be saved.
        """
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        closure = inspect.signature(optimizer.step).parameters.get("closure")
        if closure is not None and closure.default is inspect.Parameter.empty:
            raise LaunchError(
                f"{kind}.step wants a closure that computes the loss anew, perhaps several times; a step here has one "
                "forward and backward pass: take another optimizer"
            )
        names = {id(tensor): name for name, tensor in reversed([*canonical_state(model)])}
        groups = tuple(
            {
                "names": [names[id(p)] for p in group["params"] if id(p) in names],
                "settings": settings(group),
            }
            for group in optimizer.param_groups
        )
        ranges: dict[str, torch.dtype] = {}
        values: dict[str, bool] = {}
        for tensor, state in _probe(optimizer, kind, device).items() if saved else ():
            for key, value in state.items():
                if isinstance(value, Tensor) and not can_hold(value.dtype):
                    raise _unsavable(
                        kind, f"{key!r} as {value.dtype}: safetensors has no such dtype"
                    )
                if isinstance(value, Tensor) and value.shape == tensor.shape:
                    ranges[key] = torch.promote_types(value.dtype, ranges.get(key, value.dtype))
                elif (isinstance(value, Tensor) and value.dim() == 0) or isinstance(
                    value, int | float
                ):
                    values[key] = isinstance(value, Tensor)
                elif value is not None:
                    form = (
                        f"of shape {tuple(value.shape)}"
                        if hasattr(value, "shape")
                        else f"a {type(value).__name__}"
                    )
                    what = f"{key!r} {form} for a parameter of shape {tuple(tensor.shape)}"
                    raise _unsavable(kind, f"{what}: it cannot be saved by ranges of the parameter")
        return cls(kind=kind, ranges=ranges, values=values, groups=groups)


def _unsavable(kind: str, what: str) -> CheckpointError:
    return CheckpointError(
        f"{kind} keeps {what}, and would be lost on resume; take another optimizer, or keep_last: 0 to train without "
        "checkpoints"
    )


def settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a parameter group as JSON would hold them, without the learning rate."""
    return {
        k: list(v) if isinstance(v, tuple) else v
        for k, v in group.items()
        if k not in _HIDDEN and _is_plain(v)
    }


def restore_settings(group: dict[str, Any], kept: Mapping[str, Any]) -> None:
    """Give a group encoded settings, as far as it has them."""
    for key in settings(group).keys() & kept.keys():
        value, now = decode(kept[key]), group[key]
        group[key] = tuple(value) if isinstance(now, tuple) else value


def _is_plain(value: object) -> bool:
    """Tell whether JSON holds a value as it is."""
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _probe(
    optimizer: Optimizer, kind: str, device: torch.device
) -> Mapping[Tensor, Mapping[str, Any]]:
    """Return the state that a step leaves; ``CheckpointError`` where the step fails."""
    if optimizer.state:  # made with the optimizer (Adagrad of torch 2.11)
        return optimizer.state
    try:
        state: Mapping[Tensor, Mapping[str, Any]] = stepped_copy(optimizer, device).state
    except Exception as error:  # (an optimizer's step may want anything)
        raise CheckpointError(
            f"{kind}: a step on small parameters fails, so it is not known what state it keeps; take another "
            f"optimizer, or keep_last: 0 to train without checkpoints ({type(error).__name__}: {error})"
        ) from error
    return state


def state_of(
    optimizer: Optimizer, shard: Shard, form: OptimizerForm
) -> Iterator[tuple[str, Tensor]]:
    """Yield ``(kind, tensor)`` of a shard: live 1-D ranges like the shard's own, and values without
    dimensions.

    Raises:
        CheckpointError: the state has got a shape that it had not when the optimizer was looked at.
    """
    assert shard.state_key is not None, f"{shard.name} does not learn"
    for key, value in optimizer.state.get(shard.state_key, {}).items():
        if (
            key in form.ranges
            and isinstance(value, Tensor)
            and value.shape == shard.state_key.shape
        ):
            flat = local(value).detach().reshape(-1)
            yield PREFIX + key, flat[shard.state_offset : shard.state_offset + shard.tensor.numel()]
        elif key in form.values:
            yield PREFIX + key, torch.as_tensor(value).detach()
        elif value is not None:
            raise CheckpointError(
                f"the optimizer keeps {key!r} for {shard.name}, which it did not at the start"
            )


def load_state(
    strategy: Strategy, form: OptimizerForm, store: Ranges, read: Callable[[Shard], None]
) -> list[str]:
    """Give a fresh optimizer the state of a store; returns notices.

    ``read`` is called with each shard before its state is read. A parameter that had no state (it
    never had a gradient) gets none, or zeros where it shares a flat group.
    """
    states: dict[Tensor, dict[str, Any]] = defaultdict(dict)
    names = {
        name: group["names"] for group in form.groups for name in group["names"]
    }  # those of its group
    sharing: dict[
        Tensor, Sequence[str]
    ] = {}  # a flat group has one value for all, also of those on other ranks
    for shard in strategy.shards():
        state_key, count = shard.state_key, shard.tensor.numel()
        assert state_key is not None, f"{shard.name} does not learn"
        read(shard)
        sharing[state_key] = (
            [shard.name] if isinstance(state_key, nn.Parameter) else names[shard.name]
        )
        for key, dtype in form.ranges.items():
            if store.holds(PREFIX + key, shard.name):
                if key not in states[state_key]:
                    # Zeros cost a third of the time: only where some of them may stay.
                    fresh = (
                        torch.empty_like if count == local(state_key).numel() else torch.zeros_like
                    )
                    states[state_key][key] = fresh(state_key, dtype=dtype, requires_grad=False)
                out = local(states[state_key][key]).view(-1)[shard.state_offset :][:count]
                store.read(PREFIX + key, shard.name, shard.start, out, shard.columns)
    notices = {}
    for (state_key, together), key in product(sharing.items(), form.values):
        if found := {
            name: store.value(PREFIX + key, name)
            for name in together
            if store.holds(PREFIX + key, name)
        }:
            value = max(found.values())
            state = states[state_key]
            state[key] = (
                _placed(value, state_key, strategy.optimizer) if form.values[key] else value.item()
            )
            for odd in [name for name in together if found.get(name) != value][:1]:
                had = f"{value:g} counts for all, also for {odd}, which had " + format(
                    found.get(odd, "none")
                )
                notices[
                    f"the optimizer keeps one {key} for {len(together)} parameters here: {had}"
                ] = state_key
            for kind in form.ranges.keys() - state:
                state[kind] = torch.zeros_like(
                    state_key, dtype=form.ranges[kind], requires_grad=False
                )
    strategy.optimizer.state.update(states)
    return [*notices]


def _placed(value: Tensor, state_key: Tensor, optimizer: Optimizer) -> Tensor:
    """Put a value where torch keeps it: fused and capturable optimizers beside the parameter,
    others on the CPU.
    """
    group = optimizer.param_groups[0]
    beside = group.get("fused") or group.get("capturable")
    return value.to(local(state_key).device) if beside else value
