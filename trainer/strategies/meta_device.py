"""Models that are built without values, on the meta device: they are sharded first and filled
afterwards.

So no rank ever holds more of one than its own shards and what it is working on: a layer, or one
large tensor.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import LaunchError
from .tensors import canonical_state


def is_on_meta(model: nn.Module) -> bool:
    """Tell whether a model was built on the meta device."""
    return any(parameter.is_meta for parameter in model.parameters())


Made = dict[nn.Parameter, nn.Parameter]  # new parameters, by those whose place they took


def allocate(modules: Iterable[nn.Module], device: torch.device, made: Made | None = None) -> Made:
    """Put parameters that have memory, but no values, in the place of those on the meta device;
    return them.

    Args:
        modules: whose own parameters are meant.
        made: what was made before: a shared parameter stays one.
    """
    return _replace(
        modules,
        lambda parameter: torch.empty_like(parameter, device=device),
        {} if made is None else made,
    )


def renew(optimizer: Optimizer, made: Made) -> None:
    """Have an optimizer step the parameters that were made."""
    for group in optimizer.param_groups:
        group["params"] = [made.get(parameter, parameter) for parameter in group["params"]]


class Blank:
    """The form of a model without values, and how its modules get their first ones.

    What is drawn for a module depends on the seed and its name alone: it is the same on every
    layout. The buffers of ``model`` get their values at once, since every rank has them whole.

    Args:
        model: with parameters on the meta device, not prepared yet.
        initialize: gives a module its own parameters and buffers, all that it has and those of the
            modules within.
        seed: of the whole training.
        stored: persistent buffers get their values from files later.

    Raises:
        LaunchError: nobody gives a buffer a value.
    """

    def __init__(
        self,
        model: nn.Module,
        initialize: Callable[[nn.Module, nn.Module], None],
        seed: int,
        *,
        stored: bool,
    ) -> None:
        self._initialize, self._seed = initialize, seed
        for path, module in model.named_modules():
            blank = {
                key: buffer
                for key, buffer in module._buffers.items()
                if buffer is not None and buffer.is_meta
            }
            found: list[list[Tensor]] = []
            for before in (
                (0, 1) if blank else ()
            ):  # what is the same both times was given, a mask or a count too
                own = {
                    key: torch.full_like(buffer, before, device="cpu")
                    for key, buffer in blank.items()
                }
                module._buffers.update(own)
                self._draw(
                    model, {path: module}
                )  # its parameters are on the meta device, where nothing happens
                found.append(list(own.values()))
            for key, one, other in zip(blank, *found, strict=True) if blank else ():
                if not torch.equal(one, other) and not (
                    stored and key not in module._non_persistent_buffers_set
                ):
                    raise _nobody_fills(_join(path, key))
        # What has values already is not copied.
        self._form = copy.deepcopy(
            model, {id(one): one for one in model.parameters() if not one.is_meta}
        )

    def first_values(self, wanted: Collection[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield the first values of parameters by name, whole and on the CPU; a layer at a time is
        in memory.

        Raises:
            LaunchError: nobody gives one a value.
        """
        names = {id(tensor): name for name, tensor in reversed([*canonical_state(self._form)])}
        for modules in _portions("", self._form):
            here = (
                parameter
                for module in modules.values()
                for parameter in module.parameters(recurse=False)
            )
            blank = dict.fromkeys(parameter for parameter in here if parameter.is_meta)
            own = {
                names[id(parameter)]: parameter
                for parameter in blank
                if names[id(parameter)] in wanted
            }
            if not own:
                continue
            made = _replace(modules.values(), _unset, {}, only=set(own.values()))
            self._draw(self._form, modules)
            values = {name: made[parameter].detach() for name, parameter in own.items()}
            _check_filled(values)
            yield from values.items()
            back = {new: parameter for parameter, new in made.items()}  # the memory goes
            _replace(modules.values(), lambda new: new, back, only=set(back))
            wanted = set(wanted).difference(own)

    @torch.no_grad()
    def _draw(self, model: nn.Module, modules: dict[str, nn.Module]) -> None:
        for path, module in modules.items():
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(
                    zlib.crc32(f"{self._seed} {path}".encode())
                )  # of a seed it takes 32 bits
                self._initialize(model, module)


def _portions(path: str, module: nn.Module) -> Iterator[dict[str, nn.Module]]:
    """Yield modules by name that are initialized together, inner ones first: a parent may want its
    children's weights.

    What stands in a list (layers, experts) is a portion each.
    """
    if any(isinstance(inner, nn.ModuleList) for inner in module.modules()):
        for name, child in module.named_children():
            yield from _portions(_join(path, name), child)
        if next(module.parameters(recurse=False), None) is not None:
            yield {path: module}
    else:
        found = {
            _join(path, name) if name else path: inner for name, inner in module.named_modules()
        }
        yield dict(reversed(found.items()))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _replace(
    modules: Iterable[nn.Module],
    make: Callable[[nn.Parameter], Tensor],
    made: Made,
    *,
    only: Collection[nn.Parameter] | None = None,
) -> Made:
    """Put others in the place of parameters, by default of those on the meta device, a shared one
    once.

    Not by swapping what is in them: whoever has weak references to one (nn.LSTM) does not allow it.
    """
    for module in modules:
        for key, parameter in list(module._parameters.items()):
            if parameter is not None and (parameter.is_meta if only is None else parameter in only):
                if parameter not in made:
                    made[parameter] = nn.Parameter(make(parameter), parameter.requires_grad)
                    made[parameter]._backward_hooks = parameter._backward_hooks
                setattr(
                    module, key, made[parameter]
                )  # some modules keep a list of their own up to date by it
    return made


def _unset(tensor: Tensor) -> Tensor:
    """Return memory on the CPU in which every value that nobody sets can be seen, for
    floating-point numbers.
    """
    empty = torch.zeros_like(tensor, device="cpu")
    return empty.fill_(float("nan")) if empty.is_floating_point() else empty


def _check_filled(parameters: Mapping[str, Tensor]) -> None:
    for name, tensor in parameters.items():
        if tensor.is_floating_point() and bool(tensor.isnan().any()):
            raise _nobody_fills(name)


def _nobody_fills(name: str) -> LaunchError:
    return LaunchError(
        f"{name} was built on the meta device, and nobody gives it values: its module needs a reset_parameters() that "
        "does, or the task an initialize(model, module)"
    )
