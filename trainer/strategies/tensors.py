"""The tensors of a prepared model behind wrappers and shards: names, norm and clipping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from numpy import float32
from torch import Tensor, nn

from ..private.torch import (
    RECOMPUTED,
    is_persistent,
    local_of,
    multiply_all,
    norms_of,
    own_buffers,
    own_parameters,
)
from ..private.transformers import mark_sharded
from ..text import listed

# The classes that packages wrap a model in to spread it over processes.
WRAPPERS = (
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "FSDPModule",
    "DeepSpeedEngine",
)

# By the names in a plan.
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# Long tensors are summed in rows of so many elements on a CPU, which adds the squares of a row in
# turn, in float32. The norm of such a row is off by 6e-8 on average.
_ROW = 4096


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a possibly distributed tensor."""
    if type(tensor) is Tensor or not hasattr(tensor, "to_local"):  # most gradients are ordinary
        return tensor
    return local_of(tensor)


def global_norm(
    parts: list[Tensor], group: dist.ProcessGroup | None, each: Tensor | None = None
) -> Tensor:
    """Return the norm of all elements of tensors of which this rank has parts. Collective.

    torch's ``get_total_norm`` asks each distributed tensor, at 150 microseconds.

    Args:
        parts: this rank's.
        group: the ranks over which all tensors are divided. None if each rank has whole tensors.
            Of several groups each has a copy of the model.
        each: the norms of the parts, if they are known already.
    """
    norm = local_norm(parts) if each is None else torch.linalg.vector_norm(each)
    if group:
        square = norm.double().square()
        dist.all_reduce(square)  # over all groups: two sums may differ in a bit, and copies drift
        norm = (square * (group.size() / dist.get_world_size())).sqrt()
    return norm.float()


def local_norm(parts: list[Tensor]) -> Tensor:
    """Return the norm of all elements of tensors on the same device, in float32 or float64.

    On a CPU torch adds the squares of a tensor in turn, in float32: the norm of 30 million elements
    is 1.6e-3 too small (torch 2.13). So long tensors are cut into rows, in the same time.
    """
    on_cpu = parts[0].device.type == "cpu"
    long = [part for part in parts if part.numel() > _ROW] if on_cpu else []
    if not long:
        norm: Tensor = torch.linalg.vector_norm(norms_of(parts))
        return norm

    short = [part for part in parts if part.numel() <= _ROW]
    norms = []
    for part in long:
        rows, rest = part.reshape(-1).tensor_split([part.numel() // _ROW * _ROW])
        norms.append(torch.linalg.vector_norm(rows.view(-1, _ROW), dim=1))
        if rest.numel():
            short.append(rest)
    if short:
        norms.append(norms_of(short))

    whole: Tensor = torch.linalg.vector_norm(torch.cat(norms), dtype=torch.float64)
    return whole


def clip(parts: list[Tensor], limit: float, norm: Tensor) -> None:
    """Scale this rank's parts of gradients in place so that their global norm is at most ``limit``.

    As ``nn.utils.clip_grads_with_norm_``, which takes gradients of a single mesh only. On a CPU the
    factor is computed in float32 by numpy, with the same bits: four kernels less (6 us). Gradients
    of a norm below the limit, or of NaN, are not written then.
    """
    if norm.is_cpu:
        factor = float32(1.0) / (float32(norm.item()) + float32(1e-6)) * float32(limit)
        if factor < 1.0:
            multiply_all(parts, norm.new_full((), float(factor)))
        return
    multiply_all(parts, torch.clamp(limit / (norm + 1e-6), max=1.0).to(parts[0].device))


def keep_in_step(model: nn.Module) -> None:
    """Mark a sharded model, so that ``generate`` of transformers ends on all ranks together."""
    for module in model.modules():
        mark_sharded(module)


def is_on_meta(model: nn.Module) -> bool:
    """Return whether a model was built on the meta device."""
    return any(parameter.is_meta for parameter in model.parameters())


def canonical_state(model: nn.Module) -> dict[str, Tensor | nn.Parameter]:
    """Return parameters and persistent buffers by every name in the task's model."""
    state: dict[str, Tensor | nn.Parameter] = {}
    for path, module in unwrapped(model).named_modules(remove_duplicate=False):
        for key, tensor in (*own_parameters(module).items(), *own_buffers(module).items()):
            if tensor is not None and is_persistent(module, key):
                state[f"{path}.{key}".replace(f"{RECOMPUTED}.", "").lstrip(".")] = tensor
    return state


def first_names(model: nn.Module) -> dict[Tensor, str]:
    """Return the first name of each parameter and persistent buffer, in their order."""
    names: dict[Tensor, str] = {}
    for name, tensor in canonical_state(model).items():
        names.setdefault(tensor, name)
    return names


def canonical_names(model: nn.Module) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and dtype in files of each tensor: trainable parameters are full precision."""
    found = {}
    for name, tensor in canonical_state(model).items():
        is_trained = isinstance(tensor, nn.Parameter) and tensor.requires_grad
        dtype = torch.float32 if is_trained and tensor.is_floating_point() else tensor.dtype
        found[name] = (tuple(tensor.shape), dtype)
    return found


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the task's own module behind a wrapper (DDP, an engine)."""
    if type(model).__name__ in WRAPPERS:
        return model.module  # type: ignore[return-value]
    return model


def graph_of(loss: Tensor) -> Iterator[Any]:
    """Yield the nodes of autograd behind a loss. Those of parameters have a ``variable``."""
    seen: set[Any] = {None}
    to_visit: list[Any] = [loss.grad_fn]
    while to_visit:
        node = to_visit.pop()
        if node not in seen:
            seen.add(node)
            yield node
            to_visit += [behind for behind, _ in node.next_functions]


def changed_trainable(names: Sequence[str]) -> str:
    """Return the message for parameters that were frozen, thawed or replaced during a run."""
    return (
        f"{listed(names)}: frozen, thawed or replaced, while the optimizer has the parameters that "
        "were trainable when training began. End this run, and resume with a build_model that "
        "gives others (resume, allow_config_change: true)"
    )
