"""Models that are built without values, on the meta device: they are sharded first and filled afterwards.

So no rank ever holds more of one than its own shards and what it is working on: a layer, or one large tensor.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn

from ..errors import LaunchError
from .tensors import canonical_state


def is_blank(model: nn.Module) -> bool:
    """Tell whether a model was built on the meta device."""
    return any(parameter.is_meta for parameter in model.parameters())


def allocate(parameters: Iterable[nn.Parameter], device: torch.device) -> None:
    """Give parameters on the meta device memory without values; whoever refers to one refers to it still."""
    for parameter in list(parameters):
        if parameter.is_meta:
            _become(parameter, torch.empty_like(parameter, device=device))


class Blank:
    """The form of a model without values, and how its modules get their first ones.

    What is drawn for a module depends on the seed and its name alone: it is the same on every layout. The buffers of
    ``model`` get their values at once, since every rank has them whole.

    Args:
        model: with parameters on the meta device, not prepared yet.
        initialize: gives a module its own parameters and buffers, all that it has and those of the modules within.
        seed: of the whole training.

    Raises:
        LaunchError: nobody gives a buffer a value.
    """

    def __init__(self, model: nn.Module, initialize: Callable[[nn.Module, nn.Module], None], seed: int) -> None:
        self._initialize, self._seed = initialize, seed
        for path, module in model.named_modules():
            blank = {key: buffer for key, buffer in module._buffers.items() if buffer is not None and buffer.is_meta}
            if blank:
                module._buffers.update({key: _unset(buffer) for key, buffer in blank.items()})
                self._draw(model, {path: module})  # its parameters are on the meta device, where nothing happens
                _check_filled({_join(path, key): module._buffers[key] for key in blank})
        self._form = copy.deepcopy(model)

    def first_values(self, wanted: Collection[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the first values of parameters by name, whole and on the CPU; a layer at a time is in memory.

        Raises:
            LaunchError: nobody gives one a value.
        """
        names = {id(tensor): name for name, tensor in reversed([*canonical_state(self._form)])}
        for modules in _portions("", self._form):
            blank = [p for module in modules.values() for p in module.parameters(recurse=False) if p.is_meta]
            own = {names[id(parameter)]: parameter for parameter in blank if names[id(parameter)] in wanted}
            if not own:
                continue
            forms = {name: parameter.data for name, parameter in own.items()}
            for parameter in own.values():
                _become(parameter, _unset(parameter))
            self._draw(self._form, modules)
            _check_filled(own)
            yield from ((name, parameter.detach()) for name, parameter in own.items())
            for name, parameter in own.items():  # a shared one was given out, and its memory goes
                _become(parameter, forms[name])
            wanted = set(wanted).difference(own)

    @torch.no_grad()
    def _draw(self, model: nn.Module, modules: dict[str, nn.Module]) -> None:
        for path, module in modules.items():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed((self._seed << 32) + zlib.crc32(path.encode()))
                self._initialize(model, module)


def _portions(path: str, module: nn.Module) -> Iterator[dict[str, nn.Module]]:
    """Yield modules by name that are initialized together, inner ones first: a parent may want its children's weights.

    What stands in a list (layers, experts) is a portion each.
    """
    if any(isinstance(inner, nn.ModuleList) for inner in module.modules()):
        for name, child in module.named_children():
            yield from _portions(_join(path, name), child)
        if next(module.parameters(recurse=False), None) is not None:
            yield {path: module}
    else:
        found = {_join(path, name) if name else path: inner for name, inner in module.named_modules()}
        yield dict(reversed(found.items()))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _become(parameter: Tensor, data: Tensor) -> None:
    torch.utils.swap_tensors(parameter, nn.Parameter(data, parameter.requires_grad))  # type: ignore[no-untyped-call]


def _unset(tensor: Tensor) -> Tensor:
    """Return memory on the CPU in which every value that nobody sets can be seen, for floating-point numbers."""
    empty = torch.zeros_like(tensor, device="cpu")
    return empty.fill_(float("nan")) if empty.is_floating_point() else empty


def _check_filled(tensors: Mapping[str, Tensor | None]) -> None:
    for name, tensor in tensors.items():
        if tensor is not None and tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise LaunchError(
                f"{name} was built on the meta device, and nobody gives it values: its module needs a "
                "reset_parameters(), or the task an initialize(model, module) for it"
            )
