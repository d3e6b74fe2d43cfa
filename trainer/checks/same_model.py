"""Ranks that built another model or optimizer: compared before anything is divided.

Each rank builds its own. Where they differ (an order taken from a set, weights drawn by a generator
without a seed), every strategy trains something all the same: DDP with rank 0's weights, FSDP2 with
parts of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import xxhash
from torch import Tensor, nn

from ..checkpoint.optimizer_state import settings
from ..config.plain import flat
from ..distributed.agreement import Agreement
from ..distributed.same import same_on_all_ranks
from ..errors import LaunchError
from ..hooks import Callback, Unfinished
from ..strategies.tensors import canonical_state

if TYPE_CHECKING:
    from torch.optim import Optimizer

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

    gather = agreement.gather
    difference = same_on_all_ranks(_form(model) | _groups(model, optimizer), gather)
    if difference:
        raise LaunchError(
            f"{difference}: build_model and build_optimizer must build the same on every rank, in "
            "the same order: sort what comes from a set, and leave the rank out"
        )
    if not same_on_all_ranks({name: _checksum(own) for name, own in tensors.items()}, gather):
        return

    # Processors of two kinds round first weights differently.
    sketches = gather({name: _sketch(own) for name, own in tensors.items()})
    for rank, of_rank in enumerate(sketches):
        for name, (signed_sum, norm) in of_rank.items():
            of_rank_0, norm_of_rank_0 = sketches[0][name]
            if not abs(signed_sum - of_rank_0) <= _CLOSE * max(norm, norm_of_rank_0):
                raise LaunchError(
                    f"rank {rank}: the first weights of {name} differ from those on rank 0: "
                    "build_model must draw the same on every rank: from the global generators of "
                    "torch, numpy and Python, which have one seed on all ranks, or from a "
                    "generator with a seed"
                )


def _is_whole(tensor: Tensor) -> bool:
    """Return whether all values are there: not on the meta device, and not divided by the task."""
    divided = hasattr(tensor, "placements") or hasattr(tensor, "ds_id")
    is_plain = type(tensor.data) is Tensor and tensor.layout == torch.strided
    return is_plain and not (tensor.is_meta or divided)


def _form(model: nn.Module) -> dict[str, str]:
    """Return kind, parameters and buffers of a model, by their places in its order."""
    facts = {"the model": type(model).__qualname__}
    for place, (name, parameter) in enumerate(model.named_parameters()):
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        kind = "trainable" if parameter.requires_grad else "frozen"
        facts[f"parameter {place}"] = f"{name} {shape} {parameter.dtype} {kind}"
    for place, (name, buffer) in enumerate(model.named_buffers()):
        facts[f"buffer {place}"] = f"{name} {tuple(buffer.shape)} {buffer.dtype}"
    return facts


def _groups(model: nn.Module, optimizer: Optimizer) -> dict[str, str]:
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


@torch.no_grad()
def _sketch(tensor: Tensor) -> tuple[float, float]:
    """Return the sum of all elements under random signs, and the norm. Whole numbers have norm 0.

    The sums of two tensors differ, on average, by the norm of the difference.
    """
    own = tensor.detach().cpu().reshape(-1)
    values = (torch.view_as_real(own).reshape(-1) if own.is_complex() else own).double()
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, values.shape, generator=generator, dtype=torch.int8) * 2 - 1
    rounds = tensor.is_floating_point() or tensor.is_complex()
    return float((values * signs).sum()), float(values.norm()) if rounds else 0.0
