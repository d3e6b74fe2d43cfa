"""The seam: everything that differs between strategies, and only that.

The loop talks to a ``Strategy``; a strategy knows no loop. To add one: subclass, implement the
abstract methods, add it to ``STRATEGIES`` in ``__init__.py`` and to the launch files' reader.
Every method below is entered by every rank; guards live inside.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from ..distributed.restarts import connect_attempt
from ..errors import ConfigError, Problem
from .buffers import sync
from .finite import step_if_finite
from .first_state import first_state, replaced_problem
from .meta_device import allocate, renew
from .optimizer_probe import divided_step_problem, state_slots
from .tensors import (
    canonical_names,
    canonical_state,
    clip,
    full,
    local_bytes,
    total_norm,
    unwrapped,
)

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.optim import Optimizer

    from ..plan import Plan
    from .tensor_parallel import Columns


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The part of one parameter that this rank owns, as a flat range of the whole.

    Args:
        name: the parameter's name in the model that the task built.
        start: first element of the range within the flattened parameter.
        tensor: live 1-D view of the full-precision values; changes reach the model after
            ``write_back``.
        state_key: the tensor that the optimizer keeps this parameter's state under; None for one
            that does not learn.
        state_offset: where the range begins within the flattened ``state_key`` (this rank's part,
            if distributed).
        copy, copies: which of the ranks that have this same range this one is, and how many have
            it.
        columns: of a part that is some columns of a matrix, how they lie in the whole; None for one
            range.
    """

    name: str
    start: int
    tensor: Tensor
    state_key: Tensor | None = None
    state_offset: int = 0
    copy: int = 0
    copies: int = 1
    columns: Columns | None = None

    def cut(self, whole: Tensor) -> Tensor:
        """Return this part of a whole tensor, flat."""
        count = self.tensor.numel()
        if self.columns is None or not count:
            return whole.reshape(-1)[self.start : self.start + count]
        return self.columns.within(whole.reshape(-1)[self.start :], count).reshape(-1)


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What one optimizer step gave; ``grad_norm`` stays on the device, so reading it is a sync."""

    grad_norm: Tensor
    skipped: bool = False

    @property
    def left_out(self) -> Tensor:
        """Tell whether the step changed no weight, as a truth value that stays on the device."""
        lost = self.grad_norm.isfinite().logical_not()
        return torch.ones_like(lost) if self.skipped else lost


class Strategy(ABC):
    """One way to spread a model over processes.

    Args:
        plan: what was asked for and resolved.
        accelerator: built by ``launch`` for this strategy.

    Attributes:
        held: what each process has of the parameters, and steps; empty where that is all.
    """

    held = ""

    def __init__(self, plan: Plan, accelerator: Accelerator) -> None:
        self.plan = plan
        self.accelerator = accelerator
        self.model: nn.Module
        self.optimizer: Optimizer
        self.prepared_optimizer: Any
        # Of the gradients that came so far, in their order; it must be the same on every rank. 0:
        # nobody has to look.
        self.fingerprint = 0
        self.notices: list[str] = []  # of what ``prepare`` did
        # How often the engine itself has written to parameters, outside of its optimizer step.
        self.writes = 0
        # What is done about a gradient that is not finite; "": nothing, in loops that do not look.
        self.on_nan = ""

    # -- set-up -----------------------------------------------------------------------------------

    @classmethod
    def prepare_process(cls, plan: Plan) -> None:
        """Set what an engine asks for before this process is connected to the others; connect it
        where that is ours.
        """
        connect_attempt(cls.backend(plan))

    @classmethod
    def backend(cls, plan: Plan) -> str:
        """Return torch's backend of the group of all processes."""
        return "gloo" if plan.device == "cpu" else "nccl"

    @classmethod
    @abstractmethod
    def accelerator_arguments(cls, plan: Plan) -> dict[str, Any]:
        """Return the plugins and handlers that make ``Accelerator`` run this strategy as the plan
        says.
        """

    @classmethod
    def model_problems(cls, plan: Plan, model: nn.Module) -> list[Problem]:
        """Hold what launch files say of the model's modules against a model that is built but not
        prepared yet.
        """
        return []

    @property
    def step_device(self) -> torch.device:
        """Return where the optimizer steps; known before ``prepare``."""
        return torch.device("cpu" if self.steps_on_cpu(self.plan) else self.accelerator.device)

    def optimizer_problem(self, optimizer: Optimizer) -> str:
        """Return why a fresh optimizer cannot step what this strategy gives it; empty where it can.
        Collective.
        """
        blank = any(
            parameter.is_meta for group in optimizer.param_groups for parameter in group["params"]
        )
        if (self.held or blank) and (problem := replaced_problem(optimizer)):
            return problem
        problem = self.held and divided_step_problem(optimizer, self.step_device, self.divide)
        return problem and f"each process holds {self.held} here, and {problem}"

    @classmethod
    def optimizer_problem_alone(cls, plan: Plan, optimizer: Optimizer) -> str:
        """Return as much of ``optimizer_problem`` as one process can find out that is connected to
        no others.
        """
        return replaced_problem(optimizer) if cls.held else ""

    def divide(self, tensors: list[Tensor]) -> list[Tensor]:
        """Divide whole tensors as those of an optimizer's group are; for a strategy that has
        ``held``. Collective.
        """
        return tensors

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Shard or wrap; afterwards ``self.model`` and ``self.optimizer`` are what trains."""
        if problems := self.model_problems(self.plan, model):
            raise ConfigError(problems)
        self._names = canonical_names(model)
        self.slots = state_slots(optimizer, self.step_device)
        first = first_state(optimizer)
        if first is not None:
            optimizer.state = first  # type: ignore[assignment]
        self.wrap(model, optimizer)
        if first is not None:  # Accelerate has made a plain dictionary of it
            optimizer.state = first  # type: ignore[assignment]
        # The inner optimizer: the prepared one looks up a package at every step (half of
        # Accelerate's step cost).
        self.optimizer = self.prepared_optimizer.optimizer
        self.trainable = [
            parameter for parameter in self.model.parameters() if parameter.requires_grad
        ]
        if self.plan.compile:
            self.compile(dict(self.plan.dynamo))

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Set ``model`` and ``prepared_optimizer`` to what trains."""
        renew(optimizer, allocate(model.modules(), self.accelerator.device))
        self.model, self.prepared_optimizer = self.accelerator.prepare(model, optimizer)

    def compile(self, settings: dict[str, Any]) -> None:
        """Apply ``torch.compile`` in place, so that names stay: layer by layer where the model
        repeats layers.

        One layer is compiled then, and its code serves all. ``settings`` are the launch file's
        (``dynamo_config``), which may also say whether it goes by layers.
        """
        from accelerate.utils.other import compile_regions_fsdp2, has_repeated_blocks

        model = unwrapped(self.model)
        if settings.pop("use_regional_compilation", has_repeated_blocks(model)):
            compile_regions_fsdp2(model, **settings)  # nothing in it is particular to FSDP2
        else:
            self.compile_whole(model, settings)

    def compile_whole(self, model: nn.Module, settings: dict[str, Any]) -> None:
        """Compile a model that repeats no layers.

        Accelerate compiles from the wrapper on. Tracing ends at the wrapper's hooks, and what of
        the model lies in torch's own files (an nn.Sequential) is then run as it is, without a word:
        so the model's own forward is compiled, inside of the wrapper and its hooks.
        """
        model.forward = torch.compile(model.forward, **settings)

    @abstractmethod
    def verify(self) -> None:
        """Raise ``LaunchError`` where the wrapped model or optimizer is not this strategy's."""

    @classmethod
    def steps_on_cpu(cls, plan: Plan) -> bool:
        """Tell whether the optimizer's state is kept off the GPU, so that the CPU steps it."""
        return False

    # -- one step ---------------------------------------------------------------------------------

    def micro_step(self, *, boundary: bool) -> AbstractContextManager[None]:
        """Surround forward and backward of one micro-batch; gradients are exchanged at the boundary
        only.
        """
        if boundary:
            return contextlib.nullcontext()
        return self.accelerator.no_sync(self.model)  # type: ignore[no-any-return]

    def to_device(self, batch: Any) -> Any:
        """Send a batch to where the model is, in a container of its own.

        A task may take labels out of it. On a CPU its tensors are there, and looking for them would
        cost as much as a layer.
        """
        device = self.accelerator.device
        if device.type != "cpu":
            return send_to_device(batch, device, non_blocking=True)
        if isinstance(batch, dict | list):
            return copy(batch)
        return batch

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients.

        They are averaged over ranks, so ``loss`` carries its share of the global mean times the
        world size.
        """
        scaler = self.accelerator.scaler
        if scaler is not None:
            loss = scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    def finish_step(self) -> StepResult:
        """Clip by global norm, step, zero the gradients. Skips the step where the scaler found inf
        or NaN.

        A parameter that the step did not reach has the gradient zero, as the mean over the global
        batch says, under every strategy: flat groups of parameters cannot leave one out, as torch
        does with a gradient of None.
        """
        scaler = self.accelerator.scaler
        if scaler is not None:
            scaler.unscale_(self.optimizer)

        gradients = [_gradient(parameter) for parameter in self.trainable]
        norm = total_norm(gradients)
        limit = self.plan.max_grad_norm
        if limit is not None:  # otherwise no gradient is written again
            clip(gradients, limit, norm)

        skipped = False
        if scaler is None:
            step_if_finite(self.optimizer, norm, self.on_nan)
        else:
            # Reading the scale waits for the device; the scaler itself does so in step().
            before = scaler.get_scale()
            scaler.step(self.optimizer)
            scaler.update()
            skipped = bool(scaler.get_scale() < before)

        # All that it steps. zero_grad() would enter the profiler and dynamo, which costs 20 us.
        for parameter in self.trainable:
            parameter.grad = None
        return StepResult(grad_norm=norm, skipped=skipped)

    def replicated(self, name: str, values: Tensor, state_key: Tensor | None = None) -> Shard:
        """Return the shard of a parameter that every rank has whole."""
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        return Shard(
            name=name, start=0, tensor=values.view(-1), state_key=state_key, copy=rank, copies=world
        )

    # -- weights ----------------------------------------------------------------------------------

    def sync_buffers(self) -> None:
        """Make buffers the same on every rank before they are used or written: means, and rank 0's
        whole numbers.
        """
        sync(self.model, self.accelerator)

    def settle(self) -> None:  # noqa: B027 (most engines have nothing to do)
        """Bring parameters into the state between steps, in which they can be read and changed."""

    def temporary_parameters(self) -> Sequence[tuple[Any, nn.Parameter | None]]:
        """List the parameters whose values the engine keeps elsewhere, by name.

        An edit in place of one of them would be lost. None stands for one that is not there now.
        """
        return ()

    def missed_exchange(self) -> str:
        """Return why the gradients of this step were not averaged over the ranks, or nothing."""
        return ""

    @abstractmethod
    def shard(self, name: str, parameter: nn.Parameter) -> Shard | None:
        """Return what this rank owns of a parameter; None if nothing.

        In full precision where it learns, else in the dtype that the model computes with.
        """

    def shards(self, *, trainable: bool | None = True) -> Iterator[Shard]:
        """Yield what this rank owns of the parameters that learn, of the others, or of all (None);
        of some nothing.
        """
        for name, parameter in self.parameters(trainable=trainable):
            if (shard := self.shard(name, parameter)) is not None:
                yield shard

    @torch.no_grad()
    def fill(self, values: Iterable[tuple[str, Tensor]]) -> None:
        """Set parameters to whole tensors by name, of which this rank takes its part. Collective,
        as ``write_back``.
        """
        shards = {shard.name: shard for shard in self.shards(trainable=None)}
        for name, whole in values:
            if name in shards:
                part = shards[name]
                part.tensor.copy_(part.cut(whole))
        self.write_back()

    @abstractmethod
    def write_back(self) -> None:
        """Make the model compute with what the shards now hold. A collective where the strategy
        shards.
        """

    @abstractmethod
    def full_tensor(self, name: str, parameter: nn.Parameter) -> Tensor:
        """Return one whole parameter in full precision. Collective where the strategy shards."""

    def _tensors(self) -> Iterator[tuple[str, Tensor | nn.Parameter]]:
        """Yield the prepared model's parameters and persistent buffers under the task's names,
        shared ones once.
        """
        self.settle()
        seen: set[int] = set()
        for name, tensor in canonical_state(self.model):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                yield name, tensor

    def parameters(self, *, trainable: bool | None = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that learn, those that do not, or all (None), by name."""
        for name, tensor in self._tensors():
            if isinstance(tensor, nn.Parameter) and trainable in (None, tensor.requires_grad):
                yield name, tensor

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the live persistent buffers by name; every rank has them whole."""
        for name, _, _, tensor in self.named_tensors():
            if not isinstance(tensor, nn.Parameter):
                yield name, full(tensor)

    # -- the scaler of fp16's loss ----------------------------------------------------------------

    def scaler_state(self) -> dict[str, float]:
        """Return ``scale``, and ``good_steps`` since it last changed; empty where the loss is not
        scaled.
        """
        scaler = self.accelerator.scaler
        if scaler is None:
            return {}
        state = scaler.state_dict()
        return {"scale": state["scale"], "good_steps": state["_growth_tracker"]}

    def load_scaler_state(self, state: Mapping[str, float]) -> None:
        """Set what ``scaler_state`` of any strategy gave."""
        scaler = self.accelerator.scaler
        if scaler is not None and state:
            changed = {"scale": state["scale"], "_growth_tracker": int(state["good_steps"])}
            scaler.load_state_dict({**scaler.state_dict(), **changed})

    def named_tensors(
        self,
    ) -> Iterator[tuple[str, tuple[int, ...], torch.dtype, Tensor | nn.Parameter]]:
        """Yield ``(name, shape, dtype, handle)`` of what a model file holds, in the model's order,
        shared ones once.
        """
        for name, tensor in self._tensors():
            if name in self._names:
                yield name, *self._names[name], tensor

    def gather(self, name: str, handle: Tensor | nn.Parameter) -> Tensor:
        """Return one whole tensor for a model file; parameters in full precision.

        It is on the CPU of the main process, which writes; the others have it where it was
        gathered, without a copy.
        """
        tensor = (
            self.full_tensor(name, handle) if isinstance(handle, nn.Parameter) else full(handle)
        )
        device = "cpu" if self.accelerator.is_main_process else tensor.device
        return tensor.detach().to(device).reshape(self._names[name][0])

    # -- what it holds ----------------------------------------------------------------------------

    def state_bytes(self) -> int:
        """Measure the model states of this rank in bytes, wherever they lie: what is there, and
        what a step adds.

        Counts the prepared model's parameters, the optimizer's own full-precision copies of them,
        ``slots`` tensors for each that it steps, and ``gradient_bytes``; no buffers, no
        activations.
        """
        stepped = {shard.state_key for shard in self.shards() if shard.state_key is not None}
        kept = stepped.union(self.model.parameters())
        return local_bytes(kept) + round(self.slots * local_bytes(stepped)) + self.gradient_bytes()

    def gradient_bytes(self) -> int:
        """Return the bytes of all gradients that this rank keeps at once within a step."""
        return local_bytes(self.trainable)

    def close(self) -> None:
        """Give back what holds the process at exit. Called once, by every rank."""
        self.accelerator.free_memory()


def _gradient(parameter: nn.Parameter) -> Tensor:
    if (gradient := parameter.grad) is None:
        gradient = parameter.grad = torch.zeros_like(parameter)
    return gradient


def compute_in(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Give a model floating-point inputs in ``dtype`` (None: as they are), and its outputs in full
    precision.

    What autocast does at a model's edges, for strategies that keep a whole model in the compute
    dtype.
    """
    from accelerate.utils import convert_to_fp32, recursively_apply

    def into(module: nn.Module, args: Any, kwargs: Any) -> Any:
        def is_float(value: object) -> bool:
            return isinstance(value, Tensor) and value.is_floating_point()

        return recursively_apply(
            lambda tensor: tensor.to(dtype), (args, kwargs), test_type=is_float
        )

    if dtype is not None:
        model.register_forward_pre_hook(into, with_kwargs=True)
    model.register_forward_hook(lambda module, args, output: convert_to_fp32(output))
