"""Parameters that were edited, frozen or replaced behind the optimizer's back.

Under FSDP2 and ZeRO the tensors of the modules are copies of the optimizer's, so an edit in place
would be silently lost. Under every strategy the optimizer steps the parameters that were trainable
when training began.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from ..data.batches import Window
from ..errors import LaunchError
from ..hooks import Callback, StepInfo
from ..private.torch import edit_count, gradient_hooks, own_parameters
from ..run import Run
from ..strategies.tensors import changed_trainable, unwrapped
from ..text import listed

if TYPE_CHECKING:
    from torch import Tensor


class EditedParameters(Callback):
    """Looks for edits in place of parameters whose values an engine keeps elsewhere.

    torch counts edits in place of a tensor. Reading a count takes 60 ns. An engine writes to these
    tensors as well, so the counts are read anew behind each write.
    """

    def __init__(self) -> None:
        self._counts: dict[str, int] | None = None  # None: nothing is compared
        self._writes = 0

    def on_start(self, run: Run) -> None:
        if run.strategy.temporary_parameters():  # under DDP the parameters are the values
            self._read(run)

    def on_window(self, run: Run, window: Window) -> None:
        """Look for edits by callbacks since the last step."""
        if self._counts is None or run.strategy.writes == self._writes:
            self._compare(run)
        else:
            self._read(run)

    def before_update(self, run: Run) -> None:
        """Look for edits by ``training_step``."""
        self._compare(run)

    def on_step(self, run: Run, info: StepInfo) -> None:
        if self._counts is not None:
            self._read(run)

    def on_save(self, run: Run) -> None:
        if run.strategy.writes == self._writes:
            self._compare(run)

    def _read(self, run: Run) -> None:
        self._writes = run.strategy.writes
        self._counts = _edits(run)

    def _compare(self, run: Run) -> None:
        """Raise ``LaunchError`` if a parameter was edited since the count was read."""
        if self._counts is None:
            return
        before = self._counts
        names = [name for name, count in _edits(run).items() if count != before.get(name, 0)]
        if names:
            raise LaunchError(
                f"{listed(sorted(names))}: changed in place, while this strategy keeps the values "
                "elsewhere: it would be lost; change parameters in `with run.whole_parameters():`, "
                "in a callback's on_step"
            )


def _edits(run: Run) -> dict[str, int]:
    """Return how often each parameter that is gathered now was edited in place, by name.

    If a part of the model is saved, only that part: the task says that the rest stays unchanged.
    """
    saved = run.parts.model_file.names
    return {
        name: edit_count(parameter)
        for name, parameter in run.strategy.temporary_parameters()
        if parameter is not None and (saved is None or name in saved)
    }


class TrainableSet(Callback):
    """Looks, at logged steps, whether the trainable parameters are those of the beginning.

    FSDP2 puts its own parameters back at the next gathering, and ZeRO-3 fails on a parameter that
    the engine does not know. So if parameters are divided, a replacement is refused at once.
    """

    def on_start(self, run: Run) -> None:
        if run.strategy.held:
            model = unwrapped(run.model)
            self._watch = refuse_replacement(model)

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        if run.strategy.held:
            self._watch.remove()

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Raise ``LaunchError`` if layers were frozen, thawed, replaced or added.

        A hook on the gradient of FSDP2's part of a parameter is refused as well: no gradient passes
        there.
        """
        if info.metrics is None:
            return

        named = list(unwrapped(run.model).named_parameters())
        refuse_changed(run.strategy.trainable, named)
        for name, parameter in named:
            if hasattr(parameter, "placements") and gradient_hooks(parameter):
                raise LaunchError(
                    f"{name}: a hook on its gradient would not be called: "
                    "register it in build_model"
                )


def refuse_replacement(model: nn.Module) -> Any:
    """Raise ``LaunchError`` as soon as code registers a parameter in a module of a model.

    Modules that set attributes in a way of their own are left out: FSDP2 sets its parameters there
    in the same way.

    Returns:
        The handle that removes the watch.
    """
    paths: Any = WeakKeyDictionary()
    for path, module in model.named_modules():
        kind: Any = type(module)
        if kind.__setattr__ is nn.Module.__setattr__:
            paths[module] = path

    def refuse(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if module not in paths:
            return
        # In each forward pass libraries give the same memory another class, and take a parameter
        # out for a while (torch's parametrizations).
        before = own_parameters(module).get(name)
        if before is not None and before.data_ptr() != parameter.data_ptr():
            raise LaunchError(changed_trainable([f"{paths[module]}.{name}".lstrip(".")]))

    return register_module_parameter_registration_hook(refuse)


def refuse_changed(before: Sequence[Tensor], named: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Raise ``LaunchError`` if other parameters than before are trainable.

    Args:
        before: the trainable parameters when training began.
        named: the parameters of the model now.
    """
    known = {id(parameter) for parameter in before}
    now = {id(parameter) for _, parameter in named if parameter.requires_grad}
    changed = known ^ now
    if changed:
        names = [name for name, parameter in named if id(parameter) in changed]
        raise LaunchError(changed_trainable(names))
