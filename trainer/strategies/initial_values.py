"""The initial values of a model on the meta device."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable, Collection, Iterator

import torch
from torch import Tensor, nn

from ..errors import LaunchError
from ..private.torch import is_persistent, own_buffers
from .meta_device import put
from .tensors import first_names


class InitialValues:
    """The initial values of a model on the meta device, drawn a layer at a time.

    The values of a module depend on the seed and the module's name alone. So they are the same
    under every strategy and number of processes. The constructor sets the buffers of ``model``.

    Args:
        model: with parameters on the meta device, not prepared yet.
        initialize: sets the values of a module's parameters and buffers, also of the modules
            within: ``initialize(model, module)``.
        seed: of the whole training.
        stored: persistent buffers get their values from files later.

    Raises:
        LaunchError: nothing sets the values of a buffer.
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

        # A copy of the model without values, since sharding changes the model's own modules.
        # Parameters with values are shared, not copied.
        with_values = {id(p): p for p in model.parameters() if not p.is_meta}
        self._model = copy.deepcopy(model, with_values)

    def _fill_buffers(
        self, model: nn.Module, path: str, module: nn.Module, *, stored: bool
    ) -> None:
        """Set the values of a module's own buffers on the meta device."""
        on_meta = {k: b for k, b in own_buffers(module).items() if b is not None and b.is_meta}
        results = []
        # An element that is set is the same after zeros and after ones. Masks have no NaN.
        for filler in (0, 1) if on_meta else ():
            filled = {k: torch.full_like(b, filler, device="cpu") for k, b in on_meta.items()}
            own_buffers(module).update(filled)
            # Nothing happens to the parameters, which are on the meta device.
            self._initialize_all(model, {path: module})
            results.append(filled)

        for key in on_meta:
            is_stored = stored and is_persistent(module, key)
            if not is_stored and not torch.equal(results[0][key], results[1][key]):
                raise _without_values(_join(path, key))

    def draw(self, wanted: Collection[str]) -> Iterator[tuple[str, Tensor]]:
        """Yield initial values of wanted parameters by name, whole and on the CPU.

        Raises ``LaunchError`` if nothing sets the values of a parameter.
        """
        names = first_names(self._model)
        for modules in _initialized_together("", self._model):
            own = [p for module in modules.values() for p in module.parameters(recurse=False)]
            chosen = {p: names.pop(p) for p in own if p.is_meta and names.get(p) in wanted}
            # Elements that nothing sets stay NaN.
            drawn = {p: nn.Parameter(_nan_like(p), p.requires_grad) for p in chosen}
            if drawn:
                put(modules.values(), drawn)
                self._initialize_all(self._model, modules)
            for parameter, name in chosen.items():
                values = drawn[parameter].detach()
                if values.isnan().any():
                    raise _without_values(name)
                yield name, values
            put(modules.values(), {new: old for old, new in drawn.items()})  # frees the memory

    @torch.no_grad()
    def _initialize_all(self, model: nn.Module, modules: dict[str, nn.Module]) -> None:
        """Initialize modules by name. Each module has a random generator of its own."""
        for path, module in modules.items():
            with torch.random.fork_rng(devices=[]):
                # crc32, since torch's generator takes 32 bits of a seed.
                torch.manual_seed(zlib.crc32(f"{self._seed} {path}".encode()))
                self._initialize(model, module)


def _initialized_together(path: str, module: nn.Module) -> Iterator[dict[str, nn.Module]]:
    """Yield modules by name in portions that are in memory at the same time, inner modules first.

    Each element of a list of modules (layers, experts) is a portion.
    """
    if not any(isinstance(inner, nn.ModuleList) for inner in module.modules()):
        yield dict(reversed([*module.named_modules(prefix=path)]))
        return
    for name, child in module.named_children():
        yield from _initialized_together(_join(path, name), child)
    yield {path: module}


def _join(path: str, name: str) -> str:
    return f"{path}.{name}".strip(".")


def _nan_like(tensor: Tensor) -> Tensor:
    """Return a tensor of NaN on the CPU, of zeros if its dtype has no NaN."""
    return torch.full_like(tensor, float("nan") if tensor.is_floating_point() else 0, device="cpu")


def _without_values(name: str) -> LaunchError:
    return LaunchError(
        f"{name} was built on the meta device, and nothing sets the values: write "
        "reset_parameters() in the module, or initialize(model, module) in the task"
    )
