"""Ranks that built another model or optimizer: compared before anything is divided.

Each rank builds a model. If the models differ (an order taken from a set, weights drawn by a
generator without a seed), every strategy trains without an error: DDP with rank 0's weights, FSDP2
with parts of all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import xxhash
from torch import Tensor, nn

from ..checkpoint.optimizer_state import groups_of
from ..config.plain import flat
from ..data.digest import bytes_of
from ..distributed.agreement import Agreement
from ..distributed.same import same_on_all_ranks
from ..errors import LaunchError
from ..hooks import Callback
from ..run import Built
from ..strategies.tensors import canonical_state

if TYPE_CHECKING:
    from torch.optim import Optimizer


class SameModel(Callback):
    """Compares the model and the optimizer, as the task built them, between ranks."""

    def on_optimizer(self, run: Built, optimizer: Optimizer) -> None:
        """Raise ``LaunchError`` if a rank has built another model or optimizer. Collective."""
        check_model(run.module, optimizer, run.agreement, values_come_later=run.reads_weights_later)


def check_model(
    model: nn.Module, optimizer: Optimizer, agreement: Agreement, *, values_come_later: bool
) -> None:
    """Raise ``LaunchError`` if a rank has built another model or optimizer. Collective.

    If values come later from files, the first values of these tensors do not count. 100 million
    float32 parameters take 22 ms of a CPU core.
    """
    if not agreement.distributed:
        return

    stored = {tensor for tensor in canonical_state(model).values() if values_come_later}
    facts = {"the model": type(model).__qualname__}
    named = [*model.named_parameters(), *model.named_buffers()]
    for place, (name, tensor) in enumerate(named):
        kind = "trainable " * tensor.requires_grad + str(tensor.dtype)
        facts[f"tensor {place}"] = f"{name} {tuple(tensor.shape)} {kind}"
    facts |= _groups(model, optimizer)
    for name, tensor in named:
        if _is_whole(tensor) and tensor not in stored:
            facts[f"the checksum of {name}"] = xxhash.xxh3_64_hexdigest(bytes_of(tensor))

    difference = same_on_all_ranks(facts, agreement.gather)
    if difference:
        raise LaunchError(
            f"{difference}: build_model and build_optimizer must build the same on every rank, in "
            "the same order, with the same first weights: sort what comes from a set, leave the "
            "rank out, and draw from the global generators of torch, numpy and Python, which have "
            "one seed on all ranks, or from a generator with a seed"
        )


def _is_whole(tensor: Tensor) -> bool:
    """Return whether all values are there, and in order: neither on the meta device nor sparse."""
    return type(tensor.data) is Tensor and tensor.layout == torch.strided and not tensor.is_meta


def _groups(model: nn.Module, optimizer: Optimizer) -> dict[str, str]:
    """Return the kind of an optimizer, and the settings and parameters of each group."""
    facts = {"the optimizer": type(optimizer).__qualname__}
    for number, group in enumerate(groups_of(model, optimizer)):
        rate = float(optimizer.param_groups[number]["lr"])
        facts |= flat(f"optimizer group {number}: ", {"lr": rate, **group})
    return facts
