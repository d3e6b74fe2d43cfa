"""What a prepared model's tensors are called in the task's own words, and what of them lies on this
rank.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..text import listed

# What others put around a model to spread it over processes.
WRAPPERS = (
    "DataParallel",
    "DistributedDataParallel",
    "FullyShardedDataParallel",
    "FSDPModule",
    "DeepSpeedEngine",
)

# Elements of a row, whose squares a CPU adds one after the other in float32: its norm errs by 6e-8
# on average.
_ROW = 4096


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a possibly distributed tensor."""
    part = (
        None if type(tensor) is Tensor else getattr(tensor, "to_local", None)
    )  # gradients of DDP are many
    if part is None:
        return tensor
    with torch.no_grad():  # 13 us less
        return part()  # type: ignore[no-any-return]


def local_bytes(tensors: Iterable[Tensor]) -> int:
    """Sum the bytes of this rank's parts of tensors."""
    return sum(local(tensor).nbytes for tensor in tensors)


def full(tensor: Tensor) -> Tensor:
    """Return the whole of a possibly distributed tensor. Collective for a DTensor."""
    whole = getattr(tensor, "full_tensor", None)
    return whole() if whole is not None else tensor


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the global norm of gradients, some of which may be distributed in other ways than
    others. Collective.

    Each rank takes the norm of its own parts, and one number goes around for each way. torch's own
    asks its distributed tensors one by one, at 150 microseconds each, and takes those of one mesh
    only ("found multiple meshes").
    """
    ways: dict[Any, list[Tensor]] = {}
    for gradient in gradients:
        way = None if type(gradient) is Tensor else _way(gradient)
        ways.setdefault(way, []).append(local(gradient))
    norms = [_norm(parts, way) for way, parts in ways.items()]
    norm = (
        norms[0]
        if len(norms) == 1
        else torch.linalg.vector_norm(torch.stack([one.double() for one in norms]))
    )
    return norm.float()  # rounded once


def _way(tensor: Any) -> Any:
    """Return the groups of ranks that have other parts of a tensor each; None for one that this
    rank has whole.
    """
    if (mesh := getattr(tensor, "device_mesh", None)) is None:
        return None
    assert not any(placement.is_partial() for placement in tensor.placements), (
        "gradients are summed by now"
    )
    return tuple(
        mesh.get_group(at)
        for at, placement in enumerate(tensor.placements)
        if not placement.is_replicate()
    )


def _norm(parts: list[Tensor], way: Any) -> Tensor:
    norm = local_norm(parts)
    if not way:
        return norm
    square = norm.double().square()
    for group in way:
        dist.all_reduce(square, group=group)
    return square.sqrt()


def local_norm(parts: list[Tensor]) -> Tensor:
    """Return the norm of all elements of tensors on one device, in float32 or float64.

    On a CPU torch adds up the squares of a tensor one after the other in float32: the norm of a
    million elements is 1e-5 too small, that of 30 million 1.6e-3 (torch 2.13). So long tensors go
    as rows, which takes as long. A GPU adds up in a tree.
    """
    long = [part for part in parts if part.numel() > _ROW] if parts[0].device.type == "cpu" else []
    if not long:
        # Without a look for devices and dtypes, 20 us of torch's own.
        norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(parts)))
        return norm
    short = [part for part in parts if part.numel() <= _ROW]
    norms = []
    for part in long:
        in_rows = part.numel() // _ROW * _ROW
        if in_rows < part.numel():
            flat = part.reshape(-1)
            part, rest = flat[:in_rows], flat[in_rows:]
            short.append(rest)
        norms.append(torch.linalg.vector_norm(part.reshape(-1, _ROW), dim=1))
    if short:
        norms.append(torch.stack(torch._foreach_norm(short)))
    norm = torch.linalg.vector_norm(torch.cat(norms), dtype=torch.float64)
    return norm


def clip(gradients: Iterable[Tensor], limit: float, norm: Tensor) -> None:
    """Scale gradients down to the limit, as ``nn.utils.clip_grads_with_norm_`` does, but for those
    of one mesh.

    A norm that lies on the host is looked at first: what is below the limit is not written again.
    """
    if norm.device.type == "cpu" and norm.item() < 0.999 * limit:
        return
    parts = [local(gradient) for gradient in gradients]
    torch._foreach_mul_(parts, torch.clamp(limit / (norm + 1e-6), max=1.0).to(parts[0].device))


def keep_in_step(model: nn.Module) -> None:
    """Tell transformers that no rank may run layers without the others: some of a layer's weights
    lie on each.

    It then goes on with empty steps where other ranks generate longer texts, and drops layers of no
    rank alone. Asked without this it takes only FSDP1 and its own Trainer's ZeRO-3 for such models:
    ranks would wait for ever.
    """
    for module in model.modules():
        module._is_fsdp_managed_module = True  # type: ignore[assignment]


def _canonical(name: str) -> str:
    """Return a parameter's name without what compiling and activation checkpointing add."""
    return ".".join(
        part for part in name.split(".") if part not in ("_orig_mod", "_checkpoint_wrapped_module")
    )


def canonical_state(model: nn.Module) -> Iterator[tuple[str, Tensor | nn.Parameter]]:
    """Yield parameters and persistent buffers under the task's names, shared ones under each of
    theirs.
    """
    inner = unwrapped(model)
    for prefix, module in inner.named_modules(remove_duplicate=False):
        hidden = module._non_persistent_buffers_set
        own = [
            *module._parameters.items(),
            *((k, b) for k, b in module._buffers.items() if k not in hidden),
        ]
        for key, tensor in own:
            if tensor is not None:
                yield _canonical(f"{prefix}.{key}" if prefix else key), tensor


def canonical_names(model: nn.Module) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and file dtype of each tensor of the unprepared model; parameters are kept in
    full precision.
    """
    return {
        name: (tuple(tensor.shape), torch.float32 if _learns(tensor) else tensor.dtype)
        for name, tensor in canonical_state(model)
    }


def _learns(tensor: Tensor) -> bool:
    return isinstance(tensor, nn.Parameter) and tensor.is_floating_point() and tensor.requires_grad


def hold_scalars_as_vectors(model: nn.Module) -> None:
    """Keep scalar parameters as vectors of one element, for strategies that cannot cut a scalar.

    The model's own code still sees a scalar under the parameter's name. FSDP2 refuses scalars,
    DeepSpeed 0.19 fails on them; CLIP's ``logit_scale`` is one.
    """
    scalars = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.dim() == 0
    ]
    for module, name, parameter in scalars:
        kind = type(module)
        module.__class__ = type(
            kind.__name__, (kind,), {name: _scalar(name), "__module__": kind.__module__}
        )
        parameter.data = parameter.data.reshape(1)


def _scalar(name: str) -> property:
    def value(module: nn.Module) -> Tensor | None:
        parameter = module._parameters[name]
        # A sharded one is not looked at by the model, but by the engine.
        return (
            parameter
            if parameter is None or hasattr(parameter, "to_local")
            else parameter.reshape(())
        )

    return property(value)


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the task's own module behind a wrapper (DDP, an engine) or ``torch.compile``."""
    while True:
        inner = model._modules.get("_orig_mod")
        if inner is None and type(model).__name__ in ("DistributedDataParallel", "DeepSpeedEngine"):
            inner = model._modules["module"]
        if inner is None:
            return model
        model = inner


def changed_trainable(names: Sequence[str]) -> str:
    """Return the message for parameters that were frozen, thawed or replaced during a run."""
    return (
        f"{listed(names)}: frozen, thawed or replaced, while the optimizer has the parameters that "
        "were trainable when training began. End this run, and resume with a build_model that gives "
        "the other layers (resume, allow_config_change: true)"
    )
