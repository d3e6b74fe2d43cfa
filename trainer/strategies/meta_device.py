"""Models that are built without values, on the meta device: sharded first and filled afterwards.

So no rank ever holds more of the model than its own shards and what it is working on: a layer, or
one large tensor. The steps, in their order:

1. The task builds the model on the meta device, where tensors have shapes and no memory.
2. ``InitialValues`` gives the buffers their values, since every rank has them whole.
3. The strategy shards the model. ``allocate`` gives each parameter memory just before.
4. The shards are filled, from files or by ``InitialValues.draw``.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..errors import LaunchError
from ..private.torch import (
    is_persistent,
    own_buffers,
    own_parameters,
    set_buffer,
    share_gradient_hooks,
)
from .tensors import canonical_state

# New parameters, by those that they have replaced.
Replaced = dict[nn.Parameter, nn.Parameter]


def allocate(
    modules: Iterable[nn.Module], device: torch.device, replaced: Replaced | None = None
) -> Replaced:
    """Replace parameters on the meta device by parameters with memory, but without values yet.

    Args:
        modules: their own parameters are replaced, not those of the modules within.
        device: where the memory is.
        replaced: what earlier calls returned, so that a shared parameter stays shared.

    Returns:
        ``replaced`` with the new parameters added.
    """
    replaced = {} if replaced is None else replaced
    for module in modules:
        for parameter in module.parameters(recurse=False):
            if parameter.is_meta and parameter not in replaced:
                values = torch.empty_like(parameter, device=device)
                replaced[parameter] = nn.Parameter(values, parameter.requires_grad)
                share_gradient_hooks(replaced[parameter], parameter)
        _put(module, replaced)
    return replaced


def replace_in_optimizer(optimizer: Optimizer, replaced: Replaced) -> None:
    """Make an optimizer step the new parameters instead of those that they have replaced."""
    for group in optimizer.param_groups:
        group["params"] = [replaced.get(parameter, parameter) for parameter in group["params"]]


class InitialValues:
    """The initial values of a model on the meta device, drawn a layer at a time.

    What is drawn for a module depends on the seed and its name alone, so it is the same under every
    strategy and number of processes. Creating one gives the buffers of ``model`` their values at
    once.

    Args:
        model: with parameters on the meta device, not prepared yet.
        initialize: gives a module's own parameters and buffers, and those of the modules within,
            their values: ``initialize(model, module)``.
        seed: of the whole training.
        stored: persistent buffers get their values from files later.

    Raises:
        LaunchError: nothing gives a buffer its values.
    """

    def __init__(
        self,
        model: nn.Module,
        initialize: Callable[[nn.Module, nn.Module], None],
        seed: int,
        *,
        stored: bool,
    ) -> None:
        self._initialize = initialize
        self._seed = seed
        for path, module in model.named_modules():
            self._fill_buffers(model, path, module, stored=stored)

        # A copy of the model without values, since sharding changes the model's own modules. What
        # has values already is shared, not copied.
        with_values = {id(p): p for p in model.parameters() if not p.is_meta}
        self._model = copy.deepcopy(model, with_values)

    def _fill_buffers(
        self, model: nn.Module, path: str, module: nn.Module, *, stored: bool
    ) -> None:
        """Give a module's own buffers on the meta device their values.

        To find elements that nothing sets, the buffers are filled with zeros, initialized, filled
        with ones, and initialized again: an element that was set is the same both times. That works
        for masks and counts as well, which have no NaN.
        """
        on_meta = {k: b for k, b in own_buffers(module).items() if b is not None and b.is_meta}
        results = []
        for filler in (0, 1) if on_meta else ():
            filled = {k: torch.full_like(b, filler, device="cpu") for k, b in on_meta.items()}
            for key, buffer in filled.items():
                set_buffer(module, key, buffer)
            # The parameters are on the meta device, where nothing happens.
            self._initialize_all(model, {path: module})
            results.append(filled)

        for key in on_meta:
            is_stored = stored and is_persistent(module, key)
            if not is_stored and not torch.equal(results[0][key], results[1][key]):
                raise _without_values(_join(path, key))

    def draw(self, wanted: Collection[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield initial values of parameters by name, whole and on the CPU.

        Args:
            wanted: the names of the parameters.

        Raises:
            LaunchError: nothing gives a parameter its values.
        """
        names: dict[int, str] = {}  # the first name of a shared parameter
        for name, tensor in canonical_state(self._model):
            names.setdefault(id(tensor), name)

        remaining = set(wanted)
        for modules in _initialized_together("", self._model):
            own = [p for module in modules.values() for p in module.parameters(recurse=False)]
            chosen = {p: names[id(p)] for p in own if p.is_meta and names[id(p)] in remaining}
            if chosen:
                yield from self._draw_together(modules, chosen)
                remaining.difference_update(chosen.values())

    def _draw_together(
        self, modules: dict[str, nn.Module], names: dict[nn.Parameter, str]
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield initial values of parameters of these modules, and free their memory afterwards."""
        # Elements that nothing sets stay NaN.
        drawn = {p: nn.Parameter(_nan_like(p), p.requires_grad) for p in names}
        for module in modules.values():
            _put(module, drawn)
        self._initialize_all(self._model, modules)
        for parameter, name in names.items():
            values = drawn[parameter].detach()
            if values.is_floating_point() and bool(values.isnan().any()):
                raise _without_values(name)
            yield name, values

        back = {new: old for old, new in drawn.items()}
        for module in modules.values():
            _put(module, back)

    @torch.no_grad()
    def _initialize_all(self, model: nn.Module, modules: dict[str, nn.Module]) -> None:
        """Initialize modules by name, each with random numbers of its own."""
        for path, module in modules.items():
            with torch.random.fork_rng(devices=[]):
                # crc32, since of a seed torch's generator takes 32 bits.
                torch.manual_seed(zlib.crc32(f"{self._seed} {path}".encode()))
                self._initialize(model, module)


def _initialized_together(path: str, module: nn.Module) -> Iterator[dict[str, nn.Module]]:
    """Yield modules by name in portions that are in memory at the same time.

    Each element of a list of modules (layers, experts) is a portion. Inner modules come first: a
    parent may use the weights of its children.
    """
    if not any(isinstance(inner, nn.ModuleList) for inner in module.modules()):
        found = {_join(path, name): inner for name, inner in module.named_modules()}
        yield dict(reversed(found.items()))
        return
    for name, child in module.named_children():
        yield from _initialized_together(_join(path, name), child)
    yield {path: module}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".strip(".")


def _put(module: nn.Module, replaced: Replaced) -> None:
    """Put new parameters into a module in place of those of its own that they replace.

    Swapping the data inside of the parameters would be simpler, but torch forbids it if a module
    has weak references to them (nn.LSTM).
    """
    for key, parameter in list(own_parameters(module).items()):
        if parameter in replaced:
            # By setattr: some modules keep a list of their parameters up to date in it.
            setattr(module, key, replaced[parameter])


def _nan_like(tensor: Tensor) -> Tensor:
    """Return a tensor of NaN on the CPU, of zeros if its dtype has no NaN."""
    return torch.full_like(tensor, float("nan") if tensor.is_floating_point() else 0, device="cpu")


def _without_values(name: str) -> LaunchError:
    return LaunchError(
        f"{name} was built on the meta device, and nobody gives it values: its module needs a "
        "reset_parameters() that does, or the task an initialize(model, module)"
    )
