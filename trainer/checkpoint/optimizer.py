"""The optimizer's state by parameter name, whatever tensors the optimizer itself sees.

torch keeps state for each parameter; an engine may hand it flat groups of fragments instead. Each ``Shard`` says
under which tensor its state is held, and where in it. State is a range of elements, as the parameter is, or one
value for a parameter as a whole (Adam's step). State of other shapes (factored second moments) cannot be cut along a
parameter: such an optimizer is refused before training, for it could only be reset.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import CheckpointError
from ..strategies import Shard, Strategy
from ..strategies.tensors import canonical_state, local
from .ranges import Ranges

PREFIX = "optimizer."
_HIDDEN = ("params", "lr", "initial_lr")  # the learning rate is the schedule's


@dataclass(frozen=True, kw_only=True)
class OptimizerForm:
    """What an optimizer keeps, found out before it is wrapped.

    Args:
        kind: its class.
        ranges: state of the parameter's shape, by its key, with its dtype.
        values: state of one value, by its key; ``True`` where it is a tensor, ``False`` for a plain number.
        groups: for each parameter group, the names of its parameters and its settings without the learning rate.
    """

    kind: str
    ranges: Mapping[str, torch.dtype]
    values: Mapping[str, bool]
    groups: tuple[dict[str, Any], ...]

    @classmethod
    def of(cls, model: nn.Module, optimizer: Optimizer, *, saved: bool) -> OptimizerForm:
        """Look at a fresh optimizer, and at what one step on two small parameters leaves in a copy of it.

        Args:
            saved: whether its state will be; otherwise nothing is asked of it.

        Raises:
            CheckpointError: the state has another shape than the parameter.
        """
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        names: dict[int, str] = {}
        for name, tensor in canonical_state(model):
            names.setdefault(id(tensor), name)
        groups = tuple(
            {"names": [names[id(p)] for p in group["params"] if id(p) in names], "settings": settings(group)}
            for group in optimizer.param_groups
        )
        ranges: dict[str, torch.dtype] = {}
        values: dict[str, bool] = {}
        for key, value, shape in _probe(optimizer) if saved else ():
            if isinstance(value, Tensor) and value.shape == shape:
                ranges[key] = value.dtype
            elif (isinstance(value, Tensor) and value.dim() == 0) or isinstance(value, int | float):
                values[key] = isinstance(value, Tensor)
            elif value is not None:
                form = f"of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
                raise CheckpointError(
                    f"{kind} keeps {key!r} {form} for a parameter of shape {tuple(shape)}: it cannot be saved by "
                    "ranges of the parameter, and would be lost on resume; take another optimizer, or keep_last: 0 to "
                    "train without checkpoints"
                )
        return cls(kind=kind, ranges=ranges, values=values, groups=groups)


def settings(group: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a parameter group as JSON would hold them, without the learning rate."""
    return {k: list(v) if isinstance(v, tuple) else v for k, v in group.items() if k not in _HIDDEN and is_plain(v)}


def is_plain(value: object) -> bool:
    """Whether JSON holds a value as it is."""
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _probe(optimizer: Optimizer) -> Iterator[tuple[str, Any, torch.Size]]:
    if optimizer.state:  # made with the optimizer (Adagrad of torch 2.11)
        for tensor, state in optimizer.state.items():
            yield from ((str(key), value, tensor.shape) for key, value in state.items())
        return
    group = optimizer.param_groups[0]
    like = group["params"][0]
    probe: Any = object.__new__(type(optimizer))  # shares the settings, and has state and parameters of its own
    probe.__dict__.update(optimizer.__dict__)
    probe.state = defaultdict(dict)
    tiny = [torch.zeros(shape, dtype=like.dtype, device=like.device) for shape in ((3, 2), (3,))]
    for tensor in tiny:
        tensor.grad = torch.zeros_like(tensor)
    probe.param_groups = [{**group, "params": tiny}]
    probe.step()
    for tensor in tiny:
        yield from ((str(key), value, tensor.shape) for key, value in probe.state[tensor].items())


# -- reading it out -------------------------------------------------------------------------------


def state_of(optimizer: Optimizer, shard: Shard, form: OptimizerForm) -> Iterator[tuple[str, Tensor]]:
    """``(kind, tensor)`` of a shard: live 1-D ranges like the shard's own, and values without dimensions.

    Raises:
        CheckpointError: the state has got a shape that it had not when the optimizer was looked at.
    """
    assert shard.holder is not None, f"{shard.name} does not learn"
    for key, value in optimizer.state.get(shard.holder, {}).items():
        if key in form.ranges and isinstance(value, Tensor) and value.shape == shard.holder.shape:
            flat = local(value).detach().reshape(-1)
            yield PREFIX + key, flat[shard.offset : shard.offset + shard.tensor.numel()]
        elif key in form.values:
            yield PREFIX + key, torch.as_tensor(value).detach()
        elif value is not None:
            raise CheckpointError(f"the optimizer keeps {key!r} for {shard.name}, which it did not at the start")


# -- setting it -----------------------------------------------------------------------------------


def load_state(strategy: Strategy, shards: Iterable[Shard], form: OptimizerForm, store: Ranges) -> list[str]:
    """Give a fresh optimizer the state of a store; returns notices.

    A parameter that had no state (it never had a gradient) gets none, or zeros where it shares a flat group.
    """
    held: dict[int, list[Shard]] = defaultdict(list)
    for shard in shards:
        held[id(shard.holder)].append(shard)
    notices = []
    for members in held.values():
        holder = members[0].holder
        kinds = {shard.name: store.kinds(shard.name) for shard in members}
        kept = {kind.removeprefix(PREFIX) for kinds_ in kinds.values() for kind in kinds_ if kind.startswith(PREFIX)}
        if not kept:
            continue
        assert holder is not None, "frozen parameters have no state"
        state: dict[str, Any] = {}
        for key in sorted(kept & set(form.ranges)):
            state[key] = torch.zeros_like(holder, dtype=form.ranges[key], requires_grad=False)
            flat = local(state[key]).view(-1)
            for shard in members:
                if PREFIX + key in kinds[shard.name]:
                    out = flat[shard.offset : shard.offset + shard.tensor.numel()]
                    store.read(PREFIX + key, shard.name, shard.start, out)
        for key in sorted(kept & set(form.values)):
            found = {name: store.whole(PREFIX + key, name)[0].clone() for name in kinds if PREFIX + key in kinds[name]}
            largest = max(found.values(), key=float)
            if any(value != largest for value in found.values()):
                few = min(found, key=lambda name: float(found[name]))
                notices.append(
                    f"the optimizer keeps one {key} for {len(members)} parameters here: {largest:g} counts for all, "
                    f"also for {few}, which had {float(found[few]):g}"
                )
            state[key] = _placed(largest, holder, strategy.optimizer) if form.values[key] else largest.item()
        strategy.optimizer.state[holder] = state
    return notices


def _placed(value: Tensor, holder: Tensor, optimizer: Optimizer) -> Tensor:
    """Where torch keeps such a value: fused and capturable optimizers beside the parameter, others on the CPU."""
    group = optimizer.param_groups[0]
    beside = group.get("fused") or group.get("capturable")
    return value.to(local(holder).device) if beside else value
