"""Ranks that built another model or optimizer: compared before anything is divided.

Each rank builds its own. Where they differ (an order taken from a set, weights drawn by a generator
without a seed), every strategy trains something all the same: DDP with rank 0's weights, FSDP2 with
parts of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import xxhash
from torch import Tensor, nn

from ..checkpoint.optimizer_state import settings
from ..distributed.agreement import Agreement
from ..errors import LaunchError
from ..hooks import Callback, Unfinished
from ..strategies.tensors import canonical_state
from .differences import Facts, described, differences, flat

if TYPE_CHECKING:
    from torch.optim import Optimizer

_VALUES = "the first values of "
# How far first weights may differ, as parts of their norm: processors of two kinds round
# differently.
_CLOSE = 1e-4


class SameModel(Callback):
    """Compares the model and the optimizer, as the task built them, between ranks."""

    def __init__(self) -> None:
        self._model: nn.Module | None = None

    def on_model(self, run: Unfinished, model: nn.Module) -> None:
        self._model = model

    def on_optimizer(self, run: Unfinished, optimizer: Optimizer) -> None:
        """Raise ``LaunchError`` where a rank has built something else. Collective."""
        assert self._model is not None, "on_model comes first"
        check_model(
            self._model, optimizer, run.agreement, values_come_later=run.reads_weights_later
        )
        self._model = None


def check_model(
    model: nn.Module, optimizer: Optimizer, agreement: Agreement, *, values_come_later: bool
) -> None:
    """Raise ``LaunchError`` where a rank has built another model or optimizer. Collective.

    The model is as the task built it, whole on each rank. 100 million float32 parameters take 22 ms
    of a CPU core.

    Args:
        values_come_later: parameters and persistent buffers are still read from files, so their
            first values do not count.
    """
    if not agreement.distributed:
        return

    stored = set()
    if values_come_later:
        stored = {id(tensor) for _, tensor in canonical_state(model)}
    tensors = {}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if _is_whole(tensor) and id(tensor) not in stored:
            tensors[name] = tensor

    facts = _form(model) | _groups(model, optimizer)
    for name, tensor in tensors.items():
        facts[f"{_VALUES}{name}"] = _checksum(tensor)
    different, of_ranks = differences(facts, agreement)
    if not different:
        return

    if not different[0].startswith(_VALUES):
        raise LaunchError(
            f"{described(different[0], of_ranks)}: build_model and build_optimizer must build the "
            "same on every rank, in the same order: sort what comes from a set, and leave the rank "
            "out"
        )
    for fact in different:
        name = fact.removeprefix(_VALUES)
        _refuse_other_values(name, tensors[name], agreement)


def _refuse_other_values(name: str, tensor: Tensor, agreement: Agreement) -> None:
    """Raise ``LaunchError`` where a rank's values are not nearly those of rank 0. Collective."""
    sketches = agreement.gather(_sketch(tensor))
    for rank, sketch in enumerate(sketches):
        if not _is_close(sketch, sketches[0]):
            raise LaunchError(
                f"rank {rank}: the first weights of {name} differ: {_begins(sketch)} here, "
                f"{_begins(sketches[0])} on rank 0: build_model must draw the same on every rank: "
                "from the global generators of torch, numpy and Python, which have one seed on all "
                "ranks, or from one of its own with a seed"
            )


def _is_whole(tensor: Tensor) -> bool:
    """Return whether all values are there: not on the meta device, and not divided by the task."""
    divided = hasattr(tensor, "placements") or hasattr(tensor, "ds_id")
    is_plain = type(tensor.data) is Tensor and tensor.layout == torch.strided
    return is_plain and not (tensor.is_meta or divided)


def _form(model: nn.Module) -> Facts:
    """Return kind, parameters and buffers of a model, by their places in its order."""
    facts = {"the model": type(model).__qualname__}
    for place, (name, parameter) in enumerate(model.named_parameters()):
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        kind = "trainable" if parameter.requires_grad else "frozen"
        facts[f"parameter {place}"] = f"{name} {shape} {parameter.dtype} {kind}"
    for place, (name, buffer) in enumerate(model.named_buffers()):
        facts[f"buffer {place}"] = f"{name} {tuple(buffer.shape)} {buffer.dtype}"
    return facts


def _groups(model: nn.Module, optimizer: Optimizer) -> Facts:
    """Return the kind of an optimizer, and the settings and parameters of each of its groups."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    facts = {"the optimizer": type(optimizer).__qualname__}
    for number, group in enumerate(optimizer.param_groups):
        of_group = {"lr": float(group.get("lr", 0.0)), **settings(group)}
        facts |= flat(f"optimizer group {number}: ", of_group)
        held = []
        for parameter in group["params"]:
            held.append(names.get(id(parameter), "no parameter of the model"))
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
    """A few numbers that show whether two tensors are nearly the same.

    Args:
        norm: of the tensor; 0 for whole numbers, which are the same or not.
        sums: of all elements under signs that follow from a seed. Those of two tensors differ, on
            average, by the norm of the difference.
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
