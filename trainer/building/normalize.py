"""What a model brings that strategies would drop, or double, without a word: taken along, or
refused in one line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from ..errors import LaunchError
from ..strategies.tensors import WRAPPERS, canonical_state


def unwrap_compiled(model: nn.Module) -> nn.Module:
    """Take the wrappers of ``torch.compile`` off, and have the modules inside call what was
    compiled.

    As ``module.compile()`` leaves them: names stay as they were, and DeepSpeed fails on a wrapper
    (0.19).
    """
    for module in [*model.modules()]:
        for (
            name,
            child,
        ) in module._modules.items():  # not named_children, which leaves out a second name
            module._modules[name] = None if child is None else _inner(child)
    return _inner(model)


def _inner(module: nn.Module) -> nn.Module:
    inner: Any = module._modules.get("_orig_mod")
    if inner is None or not hasattr(module, "dynamo_ctx"):
        return module

    def call(
        *args: Any, **named: Any
    ) -> Any:  # a frame of ours: torch does not trace into those of its own modules
        return inner._call_impl(*args, **named)

    context: Any = module.dynamo_ctx
    inner._compiled_call_impl = context(call)
    return inner  # type: ignore[no-any-return]


def refuse_what_would_be_lost(model: nn.Module, *, world_size: int = 1) -> None:
    """Hold a model that a task built to what every strategy keeps.

    Args:
        world_size: processes that train it.

    Raises:
        LaunchError: it is wrapped for several processes, has no weights yet, gives sparse
            gradients, changes weights in its forward pass where several processes have them, or has
            parameters that overlap in memory, hooks that run before gradients are averaged, or
            state that no file would hold.
    """
    for at, module in model.named_modules():
        name, kinds = at or type(module).__name__, {kind.__name__ for kind in type(module).__mro__}
        if kind := next((kind for kind in WRAPPERS if kind in kinds), None):
            raise LaunchError(
                f"{name} is a {kind}: build the model itself, a launch file says how it is distributed"
            )
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            rule = "gives sparse gradients, which are neither clipped nor divided; build it with sparse=False"
            raise LaunchError(f"{name} {rule}")
        if (
            isinstance(module, nn.Embedding | nn.EmbeddingBag)
            and module.max_norm is not None
            and world_size > 1
        ):
            raise LaunchError(
                f"{name} has max_norm, by which each process would scale the rows of its own batch alone, in its own "
                "copy or part: build it without, and scale rows in a callback's on_step, in "
                "`with trainer.whole_parameters():`"
            )
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            state = module.get_extra_state()
            if state is not None and getattr(state, "numel", lambda: 1)():
                raise LaunchError(
                    f"{name} has extra state, which no checkpoint would hold: keep it in buffers"
                )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise LaunchError(
                f"{name} has no shape yet: run a batch through a lazy model in build_model"
            )
        if getattr(tensor, "_post_accumulate_grad_hooks", None):
            raise LaunchError(
                f"{name} has a hook behind its gradient (register_post_accumulate_grad_hook), which would run before "
                "the gradient is averaged over micro-batches and ranks; build an optimizer that does it in its step"
            )
    for name, tensor in canonical_state(model):
        if tensor.layout != torch.strided:
            raise LaunchError(
                f"{name} is sparse, and no file would hold it: make it dense, or persistent=False"
            )
    _refuse_shared_memory(model.named_parameters())


def _refuse_shared_memory(parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
    """Refuse parameters that lie on each other: replicas would keep them one, what divides them
    makes them two.
    """
    places: dict[int, list[tuple[int, int, int, str, nn.Parameter]]] = {}
    for number, (name, parameter) in enumerate(parameters):
        if type(parameter.data) is Tensor and not parameter.is_meta and parameter.numel():
            shape, strides, begin = _bytes(parameter)
            reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
            of_storage = places.setdefault(parameter.untyped_storage().data_ptr(), [])
            of_storage.append((begin, begin + reach, number, name, parameter))
    for found in places.values():
        reaching: list[
            tuple[int, int, int, str, nn.Parameter]
        ] = []  # those before, as far as where this one begins
        for one in sorted(found, key=lambda place: place[:3]):
            reaching = [before for before in reaching if before[1] >= one[0]]
            for before in reaching:
                if _overlap(before[-1], one[-1]):
                    first, second = sorted((before[2:4], one[2:4]))
                    raise LaunchError(
                        f"{first[1]} and {second[1]} are two parameters in one memory, which stays one only where "
                        "nothing is divided; have one parameter in both places, or give each its own (clone)"
                    )
            reaching.append(one)


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Tell whether two views of one storage have a byte in common (columns beside each other have
    none).
    """
    taken = torch.zeros(one.untyped_storage().nbytes(), dtype=torch.bool)
    taken.as_strided(*_bytes(one)).fill_(True)
    return bool(taken.as_strided(*_bytes(other)).any())


def _bytes(view: Tensor) -> tuple[list[int], list[int], int]:
    """Shape, strides and offset of a view in bytes: those of one storage may differ in dtype (a
    mapped file).
    """
    strides = [stride * view.itemsize for stride in view.stride()]
    return [*view.shape, view.itemsize], [*strides, 1], int(view.storage_offset()) * view.itemsize


def make_contiguous(model: nn.Module) -> list[str]:
    """Lay tensors out row by row, as parts of them are exchanged and saved; a parameter without
    elements is a buffer.

    Returns:
        A notice where parameters were laid out anew.
    """
    bent = [parameter for parameter in model.parameters() if _is_bent(parameter)]
    for tensor in (
        *bent,
        *filter(_is_bent, model.buffers()),
    ):  # an expanded one has one place for several elements
        tensor.data = tensor.data.contiguous()
    for module in model.modules():
        for name in [
            name
            for name, value in module._parameters.items()
            if value is not None and not value.numel()
        ]:
            empty = module._parameters.pop(name)  # nothing to learn, and engines cannot divide it
            module.register_buffer(name, None if empty is None else empty.data)
    notice = (
        f"{len(bent)} parameters are laid out row by row (channels_last, transposed views); inputs in channels_last "
        "still compute in that layout"
    )
    return [notice] if bent else []


def _is_bent(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided and not tensor.is_contiguous()
    )  # a sparse tensor has no such order


def have_hooks_see_full_precision(model: nn.Module) -> None:
    """Give hooks on the gradients of parameters (a mask of rows) full precision, whatever the
    strategy computes in.
    """
    for parameter in model.parameters():
        hooks = parameter._backward_hooks or {}  # type: ignore[attr-defined,unused-ignore]
        for key, hook in hooks.items():
            hooks[key] = _in_full_precision(hook)


def _in_full_precision(hook: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def seen(gradient: Tensor) -> Any:
        changed = hook(
            gradient.float() if gradient.dtype in (torch.bfloat16, torch.float16) else gradient
        )
        return changed if changed is None else changed.to(gradient.dtype)

    return seen
