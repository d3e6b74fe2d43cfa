"""Ranks that would not train the same thing: found before the first step, and told by the first
thing that differs.

Each rank reads its own config, builds its own data and its own model. Where these differ (another
file on one machine, an order taken from a set, weights drawn by a generator without a seed), every
strategy trains something all the same: DDP with rank 0's weights, FSDP2 with parts of all. So the
ranks compare what each of them has: settings once they are connected, samples of the data
(``data/samples.py``) and the model once they are built, before anything is divided.

A comparison sends one number; only where that differs what it stands for. One process compares
nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import xxhash
from torch import Tensor, nn

from ..checkpoint.optimizer_state import settings
from ..config.annotations import plain
from ..data.augment import Items
from ..data.samples import Sampled, SampledSet
from ..distributed.agreement import Agreement
from ..errors import ConfigError, LaunchError, Origin, Problem
from ..strategies.tensors import canonical_state

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..config.train_config import TrainConfig
    from ..data.batches import TrainData
    from ..plan import Plan
    from ..task import Data

Facts = dict[str, str]  # what it is, and its value
# Of a plan: where values come from, how the processes were started, and what is worth knowing on
# one machine.
_MAY_DIFFER = ("files", "origins", "notices", "launcher")
_VALUES = "the first values of "
# how far first weights may lie apart, as parts of their norm: processors of two kinds round
# differently
_CLOSE = 1e-4


def differing(facts: Facts, agreement: Agreement) -> tuple[list[str], list[Facts]]:
    """Compare facts; return those that some rank has otherwise than rank 0, in order, and those of
    all ranks.

    Every rank calls it. Where nothing differs nothing is returned.
    """
    checksum = xxhash.xxh3_64_intdigest(json.dumps([*facts.items()]).encode())
    checksums = agreement.gather(checksum)
    if len(set(checksums)) == 1:
        return [], []
    of_ranks = agreement.gather(facts)
    known = dict.fromkeys(what for other in of_ranks for what in other)
    found = [
        what
        for what in known
        if any(other.get(what) != of_ranks[0].get(what) for other in of_ranks)
    ]
    return found, of_ranks


def told(what: str, of_ranks: Sequence[Facts]) -> str:
    """Say who has something otherwise than rank 0: ``rank 1: lr is 0.1, rank 0: 0.001``."""
    first = of_ranks[0].get(what, "missing")
    for rank, other in enumerate(of_ranks):
        value = other.get(what, "missing")
        if value != first:
            return f"rank {rank}: {what} is {value}, rank 0: {first}"
    raise AssertionError(f"{what} is the same on all ranks")


# -- settings
# ---------------------------------------------------------------------------------------------------------


def check_settings(
    config: TrainConfig, plan: Plan, task: Mapping[str, Any], agreement: Agreement
) -> None:
    """Raise ``ConfigError`` where a rank was started with other settings. Every rank calls it.

    Args:
        task: its name and settings, whoever built it.
    """
    if not agreement.distributed:
        return
    configured = {**vars(config), **task}
    planned = {key: value for key, value in plan.as_dict().items() if key not in _MAY_DIFFER}
    facts = _flat("", configured) | _flat("plan.", planned)
    found, of_ranks = differing(facts, agreement)
    if found:
        rule = "every rank must run with the same settings; start all of them with the same files, arguments and code"
        raise ConfigError(Problem(origin=Origin(told(found[0], of_ranks)), rule=rule))


def _flat(prefix: str, values: Mapping[str, Any]) -> Facts:
    found: Facts = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            found |= _flat(f"{prefix}{key}.", value)
        else:
            found[f"{prefix}{key}"] = (
                value if isinstance(value, str) else json.dumps(plain(value, compared=True))
            )
    return found


# -- data -------------------------------------------------------------------------------------------------------------


def sampled(
    config: TrainConfig, data: Data, train: TrainData, agreement: Agreement, *, kept: bool
) -> Sampled:
    """Read some samples of each data set, and hold them to be the same on every rank. Every rank calls it.

    Args:
        kept: whether checkpoints are written or read, which hold what the training set was. One process reads samples
            for that alone.

    Raises:
        DataError: another rank has other data.
    """
    how: dict[str, Any] = {"collate": train.collate, "workers": config.workers > 0}
    micro_batch = train.layout.micro_batch_size
    sets = [
        SampledSet(
            name="Data.train",
            items=train.items,
            batch_size=micro_batch,
            version=data.version,
            **how,
        )
    ]
    if agreement.distributed and data.evaluation is not data.train:
        items = Items(data.evaluation, seed=config.seed, augment=None)
        batch_size = config.evaluation_batch_size or micro_batch
        sets.append(SampledSet(name="Data.evaluation", items=items, batch_size=batch_size, **how))
    found = Sampled(sets if agreement.distributed or kept else [], agreement.gather)
    found.refuse_unlike()
    return found


# -- model and optimizer ----------------------------------------------------------------------------------------------


def check_model(
    model: nn.Module, optimizer: Optimizer, agreement: Agreement, *, values_come_later: bool
) -> None:
    """Raise ``LaunchError`` where a rank has built another model or optimizer. Every rank calls it.

    The model is as the task built it, whole on each rank. Of 100 million float32 parameters: 22 ms of a CPU core.

    Args:
        values_come_later: parameters and persistent buffers are read from files yet, so first values do not count.
    """
    if not agreement.distributed:
        return
    stored = {id(tensor) for _, tensor in canonical_state(model)} if values_come_later else set()
    tensors = {
        name: one
        for name, one in _tensors(model).items()
        if _is_whole(one) and id(one) not in stored
    }
    facts = _form(model) | _groups(model, optimizer)
    facts |= {f"{_VALUES}{name}": _checksum(tensor) for name, tensor in tensors.items()}
    found, of_ranks = differing(facts, agreement)
    if not found:
        return

    if not found[0].startswith(_VALUES):
        raise LaunchError(
            f"{told(found[0], of_ranks)}: build_model and build_optimizer must build the same on every rank, in the "
            "same order: sort what comes from a set, and leave the rank out"
        )
    for what in found:
        name = what.removeprefix(_VALUES)
        sketches = agreement.gather(_sketch(tensors[name]))
        for rank, sketch in enumerate(sketches):
            if not _is_close(sketch, sketches[0]):
                raise LaunchError(
                    f"rank {rank}: the first weights of {name} differ: {_begins(sketch)} here, {_begins(sketches[0])} "
                    "on rank 0: build_model must draw the same on every rank: from the global generators of torch, "
                    "numpy and Python, which have one seed on all ranks, or from one of its own with a seed"
                )


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return dict([*model.named_parameters(), *model.named_buffers()])


def _is_whole(tensor: Tensor) -> bool:
    """Tell whether all values are there: not on the meta device, and not divided by the task itself."""
    divided = hasattr(tensor, "placements") or hasattr(tensor, "ds_id")
    is_plain = type(tensor.data) is Tensor and tensor.layout == torch.strided
    return is_plain and not (tensor.is_meta or divided)


def _form(model: nn.Module) -> Facts:
    """Return kind, parameters and buffers of a model, by their places in its order."""
    facts = {"the model": type(model).__qualname__}
    for place, (name, parameter) in enumerate(model.named_parameters()):
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        learns = "trainable" if parameter.requires_grad else "frozen"
        facts[f"parameter {place}"] = f"{name} {shape} {parameter.dtype} {learns}"
    for place, (name, buffer) in enumerate(model.named_buffers()):
        facts[f"buffer {place}"] = f"{name} {tuple(buffer.shape)} {buffer.dtype}"
    return facts


def _groups(model: nn.Module, optimizer: Optimizer) -> Facts:
    """Return the kind of an optimizer, and of each group the rate, the other settings and the parameters."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    facts = {"the optimizer": type(optimizer).__qualname__}
    for number, group in enumerate(optimizer.param_groups):
        of_group = {"lr": float(group.get("lr", 0.0)), **settings(group)}
        facts |= _flat(f"optimizer group {number}: ", of_group)
        held = [
            names.get(id(parameter), "no parameter of the model") for parameter in group["params"]
        ]
        facts[f"optimizer group {number}: parameters"] = ", ".join(held)
    return facts


@torch.no_grad()
def _checksum(tensor: Tensor) -> str:
    content: Any = (
        tensor.detach()
        .cpu()
        .resolve_conj()
        .resolve_neg()
        .contiguous()
        .reshape(-1)
        .view(torch.uint8)
    )
    return xxhash.xxh3_64_hexdigest(content.numpy())


class _Sketch(NamedTuple):
    """What tells whether two tensors are nearly the same.

    Args:
        norm: of the tensor; 0 for whole numbers, which are the same or not.
        sums: of all elements under signs that follow from a seed. Those of two tensors differ, on average, by the norm
            of the difference.
        begins: the first elements.
    """

    norm: float
    sums: list[float]
    begins: list[float]


@torch.no_grad()
def _sketch(tensor: Tensor) -> _Sketch:
    flat = tensor.detach().cpu().reshape(-1)
    values = (torch.view_as_real(flat).reshape(-1) if flat.is_complex() else flat).double()
    generator = torch.Generator().manual_seed(0)
    sums = []
    for _ in range(4):
        signs = (
            torch.randint(0, 2, values.shape, generator=generator, dtype=torch.int8).mul_(2).sub_(1)
        )
        sums.append(float((values * signs).sum()))
    rounds = tensor.is_floating_point() or tensor.is_complex()
    return _Sketch(float(values.norm()) if rounds else 0.0, sums, values[:3].tolist())


def _is_close(one: _Sketch, other: _Sketch) -> bool:
    limit = _CLOSE * max(one.norm, other.norm)
    return all(abs(a - b) <= limit for a, b in zip(one.sums, other.sums, strict=True))


def _begins(sketch: _Sketch) -> str:
    return ", ".join(f"{value:.4g}" for value in sketch.begins) + ", ..."
