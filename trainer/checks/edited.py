"""Parameters that were edited or replaced, if an engine keeps their values elsewhere.

Under FSDP2 and ZeRO the tensors of the modules are copies of the optimizer's, so an edit in place
would be silently lost.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.module import register_module_parameter_registration_hook

from ..data.batches import Window
from ..errors import LaunchError
from ..hooks import Callback, StepInfo
from ..private.torch import edit_count, own_parameters, storage_number
from ..run import Run
from ..strategies.tensors import changed_trainable, local, unwrapped
from ..text import listed

if TYPE_CHECKING:
    from ..strategies import Shard


class EditedParameters(Callback):
    """Looks for edits in place of parameters whose values an engine keeps elsewhere.

    torch counts edits in place of a tensor. Reading a count takes 60 ns. An engine writes to these
    tensors as well, so the counts are read anew behind each write.

    torch does not count edits of ``parameter.data``. So at logged steps this rank's part of each
    copy is compared with the engine's values: behind the callbacks, at the end of each layer's
    call, where the copy still exists, and before the backward pass.

    FSDP2 puts its own parameters back at the next gathering, and ZeRO-3 fails on a parameter that
    the engine does not know. So a replacement is refused at once.
    """

    def __init__(self) -> None:
        self._edits: tuple[int, dict[str, int]] = (0, {})  # writes of the engine, counts by name
        self._shards: defaultdict[nn.Module, list[tuple[str, Shard, int]]] = defaultdict(list)
        self._watch: list[Any] = []
        self._replacement: list[Any] = []  # the watch over replaced parameters

    def on_start(self, run: Run) -> None:
        if not run.strategy.held:  # under DDP the parameters are the values
            return
        self._replacement = [refuse_replacement(unwrapped(run.model))]
        names: dict[Any, str] = {
            own: name
            for name, own in run.strategy.parameters(trainable=None)
            if run.parts.model_file.name(name)
        }
        own: Any  # mypy: None is no key of names
        for module in run.model.modules():
            # DeepSpeed's own kind of dict would gather the parameters.
            for key, own in dict.items(own_parameters(module)):
                if own not in names:
                    continue
                shard = run.strategy.shard(names[own], own)
                # Frozen parameters of ZeRO-1 and ZeRO-2 are the values.
                if own.requires_grad or shard.copies < run.plan.world_size:
                    self._shards[module].append((key, shard, storage_number(own)))
        self._compare(run, engine_wrote=True)

    def on_end(self, run: Run, summary: Mapping[str, Any]) -> None:
        for watch in self._replacement:
            watch.remove()

    def on_window(self, run: Run, window: Window) -> None:
        """Look for edits by callbacks since the last step."""
        self._compare(run)
        step, every = run.step, run.config.log_every
        if step % every == 0:
            self._match(run.model)
        is_logged = (step + 1) % every == 0 or step in (0, run.last_step - 1)
        if is_logged and not run.plan.compile:  # a compiled layer would be compiled anew
            # Before the engine's hooks, which free the copies. A global hook would outlive a run
            # that fails, and be called by the models of other runs.
            self._watch = [
                module.register_forward_hook(self._match, prepend=True)
                for module in run.model.modules()
            ]
            run.strategy.before_backward = partial(self._match, run.model)

    def before_update(self, run: Run) -> None:
        """Look for edits by ``training_step``."""
        for hook in self._watch:
            hook.remove()
        self._watch = []
        run.strategy.before_backward = lambda: None
        self._compare(run)

    def on_step(self, run: Run, info: StepInfo) -> None:
        self._compare(run, engine_wrote=True)

    def on_save(self, run: Run) -> None:
        self._compare(run)
        self._match(run.model)

    def _compare(self, run: Run, *, engine_wrote: bool = False) -> None:
        """Count edits. Raise ``LaunchError`` if not only the engine edited a parameter."""
        if not self._shards:  # a loop of one's own begins no watch
            return
        writes, before = self._edits
        # If a part of the model is saved, the task says that the rest stays unchanged.
        counts = {
            name: edit_count(parameter)
            for name, parameter in run.strategy.temporary_parameters()
            if parameter is not None and run.parts.model_file.name(name)
        }
        self._edits = run.strategy.writes, counts
        if not engine_wrote and writes == run.strategy.writes:
            _refuse([name for name, count in counts.items() if count != before.get(name, 0)])

    def _match(self, module: nn.Module, *passed: Any) -> None:
        """Raise ``LaunchError`` if a copy in a module has other values than the engine."""
        names = []
        for inner in module.modules():
            for key, shard, number in self._shards.get(inner, ()):
                copy: Any = dict.get(own_parameters(inner), key)
                if copy is None or not copy.numel():  # not gathered
                    continue
                if isinstance(copy.data, DTensor):  # the rows themselves, in which edits are kept
                    is_same = storage_number(copy) == number
                else:  # of a rehearsal a tensor of another class
                    part = shard.cut(copy.data)
                    is_same = torch.equal(part, shard.tensor.to(part))
                if not is_same:
                    names.append(shard.name)
        _refuse(names)


def _refuse(names: list[str]) -> None:
    """Raise ``LaunchError`` if there are parameters whose changes would be lost."""
    if names:
        raise LaunchError(
            f"{listed(sorted(names))}: changed in place, while this strategy keeps the values "
            "elsewhere: it would be lost; change parameters in `with run.whole_parameters():`, "
            "in a callback's on_step"
        )


def refuse_replacement(model: nn.Module) -> Any:
    """Raise ``LaunchError`` as soon as code registers a parameter in a module of a model.

    Returns the handle that removes the watch. Modules that set attributes in a way of their own are
    left out: FSDP2 sets its parameters there in the same way.
    """
    paths: Any = WeakKeyDictionary(
        (module, path)
        for path, module in model.named_modules()
        if type(module).__setattr__ is nn.Module.__setattr__  # type: ignore[comparison-overlap]
    )

    def refuse(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if module not in paths:
            return
        # In each forward pass libraries give the same memory another class, and take a parameter
        # out for a while (torch's parametrizations).
        before = own_parameters(module).get(name)
        if before is not None and local(before).data_ptr() != local(parameter).data_ptr():
            raise LaunchError(changed_trainable([f"{paths[module]}.{name}".lstrip(".")]))

    return register_module_parameter_registration_hook(refuse)
