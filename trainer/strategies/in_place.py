"""Parameters that code outside of the optimizer reads or changes: held whole for it, and seen where
they were not.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import LaunchError
from ..text import listed
from .tensors import unwrapped

if TYPE_CHECKING:
    from .base import Strategy


# In what torch says of a parameter that is not there, or only in part.
NO_VALUES = (
    r"DTensor|storage of size 0|input of size 0|must be a matrix|\(0\)|\[0\]|PostBackwardFunction"
)


class Watch:
    """Parameters whose values lie elsewhere: what changes them in place would be lost, without a
    word.

    Args:
        look: gives ``(name, parameter)`` of each; None for a parameter that is not there yet. Names
            are asked for last.
    """

    def __init__(self, look: Callable[[], Sequence[tuple[Any, Any]]] = list) -> None:
        self._look = look
        self.reset()

    def reset(self) -> None:
        """Take what was done until now for meant: an engine writes to a parameter that is alone in
        its group.
        """
        self._before = self._versions()

    def _versions(self) -> list[int]:
        # torch counts what is done in place to a tensor: 60 ns each to read. FSDP2's whole
        # parameters begin with 0.
        return [0 if parameter is None else parameter._version for _, parameter in self._look()]

    def check(self) -> None:
        """Raise ``LaunchError`` if something was changed in place since ``reset``."""
        now = self._versions()
        if now != self._before:
            changed = zip(self._look(), now, self._before, strict=True)
            names = sorted({str(name) for (name, _), after, before in changed if after != before})
            raise LaunchError(
                f"{listed(names)}: changed in place, while this strategy keeps the values elsewhere: it would be lost; "
                "change parameters in `with trainer.whole_parameters():`, in a callback's on_step"
            )


def set_by_adapters(model: nn.Module) -> dict[tuple[int, str], nn.Parameter]:
    """Find the frozen parameters that peft's adapters of experts set to themselves in each forward
    pass.

    That counts as a change in place (``torch.nn.utils.parametrize`` does it), and changes no value.

    Returns:
        Each by its module's id and its name in the module.
    """
    found = {}
    for module in model.modules():
        name = getattr(module, "parameter_name", None)
        if name is not None and hasattr(module, "lora_A"):
            base: Any = module.get_base_layer()  # type: ignore[operator]
            parameter = base.get_parameter(name)
            if not parameter.requires_grad:
                found[id(base), name] = parameter
    return found


def gathered_parameters(
    model: nn.Module, without: Collection[tuple[int, str]]
) -> list[tuple[Any, Any]]:
    """List what FSDP2 gathers layers to, by name; it is freed after each layer, and its shards stay
    as they were.

    Args:
        without: modules' ids and names in them of parameters that are left out.
    """
    from torch.distributed.fsdp import FSDPModule

    found: list[Any] = []
    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            for group in getattr(
                state, "_fsdp_param_groups", (state._fsdp_param_group,)
            ):  # one in torch 2.11
                found += group.fsdp_params if group else []
    places = ((one, one._module_info) for one in found)
    kept = [one for one, place in places if (id(place.module), place.param_name) not in without]
    return [(one._param_fqn, getattr(one, "_unsharded_param", None)) for one in kept]


def carry_hooks(
    model: nn.Module, hooks: Mapping[str, Mapping[int, Callable[[Tensor], Any]]]
) -> None:
    """Hang hooks on gradients, by the parameter's name, on what FSDP2 gathers it to, always the
    same. Collective.

    They hung on what ``fully_shard`` has replaced, and would never be called.
    """
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

    units = {
        f"{path}." if path else "": one
        for path, one in model.named_modules()
        if isinstance(one, FSDPModule)
    }
    for name, of_parameter in hooks.items():
        unit = units[max((path for path in units if name.startswith(path)), key=len)]
        unit.unshard()
        gathered = model.get_parameter(name)
        if of_parameter and isinstance(gathered, DTensor):
            raise LaunchError(
                f"{name} has a hook on its gradient, of which tensor parallelism has parts only"
            )
        for hook in of_parameter.values():
            gathered.register_hook(hook)  # type: ignore[no-untyped-call]
        unit.reshard()


def refuse_other_parameters(strategy: Strategy) -> None:
    """Hold a model between two steps to the parameters that learnt when training began.

    Raises:
        LaunchError: a layer was frozen, thawed, replaced or added, which the optimizer does not
            know; or a hook hangs on what FSDP2 keeps of a parameter, where no gradient passes.
    """
    named, before = (
        [*unwrapped(strategy.model).named_parameters()],
        {id(one) for one in strategy.trainable},
    )
    if changed := before ^ {id(one) for _, one in named if one.requires_grad}:
        raise LaunchError(other_parameters([name for name, one in named if id(one) in changed]))
    for name, parameter in named:
        if hasattr(parameter, "placements") and parameter._backward_hooks:
            raise LaunchError(
                f"{name}: a hook on its gradient would not be called: register it in build_model"
            )


def other_parameters(names: Sequence[str]) -> str:
    """Say what is wrong with parameters that learn, or do not, other than when training began."""
    return (
        f"{listed(names)}: frozen, thawed or replaced, while the optimizer has what learnt when training began. End "
        "this run, and let one whose build_model gives the other layers go on (resume, allow_config_change: true)"
    )


@contextlib.contextmanager
def explained(strategy: str, keeps_whole: str) -> Iterator[None]:
    """Say what an error comes from where layers have their values while they compute, and not
    always.

    Args:
        keeps_whole: the setting with which all have them until the backward pass has ended.
    """
    try:
        yield
    except RuntimeError as error:
        if re.search(NO_VALUES, text := str(error)):
            error.args = (f"{text}\n{_reason(strategy, keeps_whole)}",)
        raise


def _reason(strategy: str, keeps_whole: str) -> str:
    return (
        f"{strategy} brings a layer's values when the model's forward reaches it, and takes them away. A task that "
        f"reads parameters itself, or takes gradients itself (torch.autograd.grad), wants {keeps_whole}, or ddp"
    )


def refuse_gradients_of_gradients(model: nn.Module) -> None:
    """Refuse ``create_graph`` where FSDP2 frees layers behind their forward pass.

    With BERT torch 2.13 read the freed memory: a segmentation fault, and no error that could be
    explained.
    """
    from torch.distributed.fsdp import FSDPModule

    def checked(begin: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
        def hook(gradient: Tensor) -> Any:
            if torch.is_grad_enabled():  # as autograd runs for create_graph, and not otherwise
                raise LaunchError(_reason("FSDP2", "fsdp_reshard_after_forward: false"))
            return begin(gradient)

        return hook

    for module in model.modules():
        if isinstance(module, FSDPModule):
            state: Any = module._get_fsdp_state()
            state._pre_backward = checked(state._pre_backward)


@contextlib.contextmanager
def whole_parameters(strategy: Strategy, names: Sequence[str]) -> Iterator[nn.Module]:
    """Hold parameters whole and in full precision in their places, and keep what the block makes of
    them. Collective.

    Args:
        names: of parameters, or of modules that hold them; all where there is none.

    Yields:
        The model as the task built it, without wrappers.
    """
    prefixes = tuple(f"{name}." for name in names) or ("",)
    wholes: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in strategy.parameters(trainable=None):
        if f"{name}.".startswith(prefixes):
            whole = strategy.full_tensor(name, parameter)
            if whole.dtype in (
                torch.bfloat16,
                torch.float16,
            ):  # a frozen one, in the engine's precision
                whole = whole.float()
            wholes[id(parameter)] = name, nn.Parameter(whole, requires_grad=parameter.requires_grad)
    if not wholes:
        raise LaunchError(f"the model has no parameters called {listed(names)}")
    places: list[tuple[dict[str, nn.Parameter | None], str, nn.Parameter | None]] = [
        (module._parameters, key, parameter)
        for module in strategy.model.modules()
        for key, parameter in dict.items(
            module._parameters
        )  # (DeepSpeed's own kind of dict would gather each)
        if id(parameter) in wholes
    ]
    for table, key, divided in places:
        _, table[key] = wholes[id(divided)]
    try:
        with torch.no_grad():
            yield unwrapped(strategy.model)
    finally:
        for table, key, divided in places:
            table[key] = divided
    strategy.fill((name, whole.data) for name, whole in wholes.values())
