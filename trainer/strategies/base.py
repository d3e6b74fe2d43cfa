"""The base class of strategies: everything that differs between DDP, FSDP2 and ZeRO, and only that.

The training loop calls the methods of ``Strategy`` and does not know which engine is behind them. A
strategy does not know the loop. Every method is called on every rank, in the same order.

docs/architecture.md says how to add a strategy. Override ``verify`` if Accelerate may build another
engine, ``wrap`` if ``Accelerator.prepare`` is not enough, ``backward`` and ``finish_step`` if an
engine does that work.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

from ..distributed.restarts import connect_attempt
from ..private.torch import norms_of
from .buffers import refuse_drift, sync
from .finite_step import step_if_finite
from .tensors import (
    DTYPES,
    canonical_names,
    clip,
    first_names,
    global_norm,
    is_on_meta,
    unwrapped,
)

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.distributed import ProcessGroup
    from torch.optim import Optimizer

    from ..run_plan import Plan

_NOTHING = nullcontext()


@dataclass(frozen=True, kw_only=True)
class Shard:
    """The part of a parameter that this rank owns, as a flat range of the whole.

    Args:
        name: the parameter's name in the model that the task built.
        start: first element of the range in the flattened parameter.
        tensor: live 1-D view of the full-precision values. Changes reach the model after
            ``write_back``.
        state_key: the tensor that the optimizer keeps this parameter's state under. None for a
            frozen parameter.
        state_offset: first element of the range in the flattened ``state_key`` (this rank's part,
            if distributed).
        copy: the number of this rank among those that have this same range.
        copies: the number of ranks that have this range.
    """

    name: str
    start: int
    tensor: Tensor
    state_key: Tensor | None = None
    state_offset: int = 0
    copy: int = 0
    copies: int = 1

    def cut(self, whole: Tensor) -> Tensor:
        """Return this part of a whole tensor, flat."""
        return whole.reshape(-1)[self.start : self.start + self.tensor.numel()]


@dataclass(kw_only=True)
class StepResult:
    """The outcome of an optimizer step.

    Args:
        grad_norm: the global norm of the gradient before clipping, on the device. The host waits
            for the device to read this tensor.
        skipped: whether the scaler of fp16's loss has left the step out.
        norms: the norm of this rank's part of each gradient, on the device, in the order of
            ``Strategy.trainable``. None if the engine does not tell, and on a CPU if the norm is
            finite.
    """

    grad_norm: Tensor
    skipped: bool = False
    norms: Tensor | None = None

    @property
    def left_out(self) -> bool:
        """Return whether the step changed no weight. The host waits for the device."""
        return self.skipped or not math.isfinite(self.grad_norm)


class Strategy(ABC):
    """A way to spread a model over processes.

    Args:
        plan: the resolved settings.
        accelerator: built by ``launch`` for this strategy.

    Attributes:
        held: the part of the parameters that a rank has and steps, in words for messages. Empty if
            each rank has all.
        casts_inputs: whether the inputs of the model must be cast under mixed precision.
        model, optimizer, trainable: the prepared model, torch's optimizer, and the trainable
            parameters of the model. Set by ``prepare``.
        shard_group: the ranks over which all trainable parameters are divided as DTensors. None if
            the optimizer's parameters are ordinary tensors.
        fingerprint: of the gradients so far, in the order in which they were reduced. Ranks must
            agree. 0 if the engine makes sure of the order.
        writes: how often the engine itself has written to parameters outside of a step.
        known_errors: errors of the engine by a part of their text, each with a line for the user.
        notices: lines for the banner about what ``prepare`` has made of the model.
        sums_exactly: whether gradients are summed over the ranks, and losses add up in float64.
            Otherwise gradients are averaged.
        before_backward: is called before each backward pass. ``checks/parameters.py`` sets it.
    """

    held = ""
    casts_inputs = False
    model: nn.Module
    optimizer: Optimizer
    prepared_optimizer: Any
    shard_group: ProcessGroup | None = None
    fingerprint = 0
    writes = 0
    sums_exactly = False
    known_errors: Mapping[str, str] = {
        "Expected more than 1 value per channel when training": (
            "BatchNorm has no statistics of a micro-batch of one row, such as the last of an "
            "epoch: set drop_last: true, or another micro_batch_size"
        )
    }
    notices: Sequence[str] = ()

    def __init__(self, plan: Plan, accelerator: Accelerator) -> None:
        self.plan = plan
        self.accelerator = accelerator
        self.before_backward: Callable[[], object] = lambda: None

    # -- set-up -----------------------------------------------------------------------------------

    @classmethod
    def prepare_process(cls, plan: Plan) -> None:
        """Set the engine's environment, and connect this process to the others."""
        connect_attempt(cls.backend(plan))

    @classmethod
    def backend(cls, plan: Plan) -> str:
        """Return torch's backend of the group of all processes."""
        return "gloo" if plan.device == "cpu" else "nccl"

    @classmethod
    @abstractmethod
    def accelerator_arguments(cls, plan: Plan) -> dict[str, Any]:
        """Return the arguments that make ``Accelerator`` run this strategy as the plan says."""

    @property
    def step_device(self) -> torch.device:
        """Return the device on which the optimizer steps, also before ``prepare``."""
        return torch.device("cpu" if self.steps_on_cpu(self.plan) else self.accelerator.device)

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Shard or wrap the model, and set ``self.model`` and ``self.optimizer``.

        Raises:
            ConfigError: a launch file names modules that the model does not have.
        """
        # Names and shapes are read before the engine changes them.
        self._names = canonical_names(model)
        is_cast = self.plan.mixed_precision != "no" and (self.held or self.casts_inputs)
        if is_cast:
            from .full_norms import keep_norms_fp32

            compute_norms_in_fp32 = keep_norms_fp32(model)
        self.wrap(model, optimizer)
        # The prepared optimizer looks up a package at every step (half of Accelerate's step cost),
        # so the inner optimizer steps.
        self.optimizer = self.prepared_optimizer.optimizer
        self.trainable = [p for p in self.model.parameters() if p.requires_grad]
        if self.plan.compile:
            self.compile(dict(self.plan.dynamo))
        if is_cast:
            compute_norms_in_fp32()
            dtype = DTYPES[self.plan.mixed_precision] if self.casts_inputs else None
            compute_in(unwrapped(self.model), dtype)

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Set ``model`` and ``prepared_optimizer``. Collective: call on every rank."""
        if is_on_meta(model):
            from .meta_device import allocate, replace_in_optimizer

            replaced: dict[nn.Parameter, nn.Parameter] = {}
            allocate(model.modules(), self.accelerator.device, replaced)
            replace_in_optimizer(optimizer, replaced)
        self.model, self.prepared_optimizer = self.accelerator.prepare(model, optimizer)

    def compile(self, settings: dict[str, Any]) -> None:
        """Apply ``torch.compile`` in place, so that the names of parameters stay.

        Args:
            settings: the launch file's ``dynamo_config``, for ``torch.compile``, and
                ``use_regional_compilation``: the code of a single compiled layer serves all.
        """
        from accelerate.utils.other import compile_regions_fsdp2, has_repeated_blocks

        from .compiled import remember_settings

        model = unwrapped(self.model)
        by_layers = settings.pop("use_regional_compilation", has_repeated_blocks(model))
        remember_settings(model, settings)
        if by_layers:
            compile_regions_fsdp2(model, **settings)  # serves every strategy, despite the name
        else:
            self.compile_whole(model, settings)

    def compile_whole(self, model: nn.Module, settings: dict[str, Any]) -> None:
        """Compile a model that repeats no layers, by its own forward."""
        # Accelerate compiles from the wrapper on. Tracing ends at the wrapper's hooks, and modules
        # of torch itself (an nn.Sequential) then silently run uncompiled.
        model.forward = torch.compile(model.forward, **settings)

    def verify(self) -> None:  # noqa: B027 (an engine that the strategy itself calls is there)
        """Raise ``LaunchError`` if the wrapped model or optimizer is not this strategy's."""

    @classmethod
    def steps_on_cpu(cls, plan: Plan) -> bool:
        """Return whether the optimizer's state is kept off the GPU, so that the CPU steps."""
        return False

    # -- one step ---------------------------------------------------------------------------------

    def micro_step(self, *, boundary: bool) -> AbstractContextManager[None]:
        """Return the context of the forward and backward pass of a micro-batch.

        Args:
            boundary: whether the micro-batch is the last of the window, the micro-batches of an
                optimizer step. DDP, FSDP2 and ZeRO-1 average gradients only then. ZeRO-2, ZeRO-3
                and FSDP2 with ``sync_each_batch`` do so in each micro-batch.
        """
        if boundary:
            return _NOTHING
        return self.accelerator.no_sync(self.model)  # type: ignore[no-any-return]

    def to_device(self, batch: Any) -> Any:
        """Send a batch to the model's device, in a new container, which a task may change.

        On a CPU a search for tensors would cost as much as a layer.
        """
        device = self.accelerator.device
        if device.type != "cpu":
            return send_to_device(batch, device, non_blocking=True)
        return copy(batch) if isinstance(batch, dict | list) else batch

    def backward(self, loss: Tensor) -> None:
        """Accumulate the gradients of a micro-batch.

        Args:
            loss: the micro-batch's share of the global mean, times the world size, since
                gradients are averaged over the ranks.
        """
        self.before_backward()
        scaler = self.accelerator.scaler
        if scaler:
            loss = scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]

    def finish_step(self, on_nan: str | None = None) -> StepResult:
        """Clip by global norm, step, and drop the gradients. Collective: call on every rank.

        The step is skipped if the scaler found inf or NaN. The optimizer steps a parameter that no
        sample of the global batch used with a gradient of zero, not None: the flat groups of ZeRO
        cannot leave a parameter out, and all strategies do the same.

        Args:
            on_nan: ``stop`` or ``skip``, as in ``TrainConfig``: a step with a gradient that is not
                finite is left out, and who calls acts on ``StepResult.grad_norm``. By default the
                optimizer steps with any gradient.
        """
        stepped = self.stepped()
        scaler = self.accelerator.scaler
        if scaler:
            scaler.unscale_(self.optimizer)

        gradients = []
        for parameter in stepped:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradients.append(parameter.grad)
        each = norms_of(gradients) if gradients[0].is_cuda else None
        norm = self._norm(gradients, each)
        limit = self.plan.max_grad_norm
        if limit:  # otherwise no gradient is written again
            clip(gradients, limit, norm)

        skipped = False
        if not scaler:
            if step_if_finite(self.optimizer, norm, on_nan):
                each = norms_of(gradients)
        else:
            # get_scale() waits for the device, as the scaler's own step() does.
            before = scaler.get_scale()
            scaler.step(self.optimizer)
            scaler.update()
            skipped = scaler.get_scale() < before

        # zero_grad() would enter the profiler and dynamo, which costs 20 us.
        for parameter in stepped:
            parameter.grad = None
        return StepResult(grad_norm=norm, skipped=skipped, norms=each)

    def note_order(self, number: int) -> None:
        """Add a number to the fingerprint: that of a gradient, or of a unit that is called."""
        self.fingerprint = (self.fingerprint * 31 + number) % (1 << 61)

    def stepped(self) -> Sequence[nn.Parameter]:
        """Return the trainable parameters as the optimizer has them, with the gradients."""
        return self.trainable

    def _norm(self, gradients: list[Tensor], each: Tensor | None) -> Tensor:
        """Return the norm of the gradients, of which ``each`` may be known. Collective."""
        return global_norm(gradients, self.shard_group, each)

    # -- weights ----------------------------------------------------------------------------------

    def sync_copies(self, gather: Callable[[Any], list[Any]]) -> None:
        """Make buffers the same on every rank, before an evaluation and before a file is written.

        Raises:
            LaunchError: ranks have other values of the same part of a parameter.
        """
        refuse_drift(self.shards(trainable=None), gather)
        sync(self.model, self.accelerator)

    def settle(self) -> None:  # noqa: B027 (most engines have nothing to do)
        """Bring parameters into the state between steps, in which code can read and change them."""

    def temporary_parameters(self) -> Sequence[tuple[Any, nn.Parameter | None]]:
        """List by name the copies (None: not now) of values that the engine has elsewhere."""
        return ()

    def callback_context(self) -> AbstractContextManager[object]:
        """Return the context of a call of a user's callback."""
        return nullcontext()

    def missed_exchange(self) -> str:
        """Return why the gradients of this step were not averaged over the ranks. "" normally."""
        return ""

    def shard(self, name: str, parameter: nn.Parameter) -> Shard:
        """Return this rank's part of a parameter, by default all of it.

        Frozen parameters keep their dtype.
        """
        return Shard(
            name=name,
            start=0,
            tensor=parameter.data.view(-1),
            state_key=parameter if parameter.requires_grad else None,
            copy=self.accelerator.process_index,
            copies=self.accelerator.num_processes,
        )

    @abstractmethod
    def range_of(self, parameter: nn.Parameter, rank: int) -> range:
        """Return the elements of a flattened trainable parameter that any rank has."""

    def shards(self, *, trainable: bool | None = True) -> Iterator[Shard]:
        """Yield this rank's parts of trainable, frozen or all (None) parameters."""
        for name, parameter in self.parameters(trainable=trainable):
            yield self.shard(name, parameter)

    @torch.no_grad()
    def fill(self, values: Iterable[tuple[str, Tensor]]) -> None:
        """Set parameters to whole values by name, of which each rank takes its parts."""
        shards = {shard.name: shard for shard in self.shards(trainable=None)}
        for name, whole in values:
            if name in shards:
                part = shards[name]
                part.tensor.copy_(part.cut(whole))
        self.write_back()

    @abstractmethod
    def write_back(self) -> None:
        """Make the model compute with the values of the shards. Collective: call on every rank."""

    @abstractmethod
    def full_tensor(self, parameter: nn.Parameter) -> Tensor:
        """Return a whole parameter in full precision. Collective: call on every rank."""

    def parameters(self, *, trainable: bool | None = True) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield trainable parameters, frozen parameters, or all (None), by name."""
        for name, _, _, tensor in self.named_tensors():
            if isinstance(tensor, nn.Parameter) and trainable in (None, tensor.requires_grad):
                yield name, tensor

    def buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the live persistent buffers by name. Every rank has whole buffers."""
        for name, _, _, tensor in self.named_tensors():
            if not isinstance(tensor, nn.Parameter):
                yield name, tensor

    # -- the scaler of fp16's loss ----------------------------------------------------------------

    def scaler_state(self) -> dict[str, float]:
        """Return ``scale``, and ``good_steps`` since the last change. Empty without a scaler."""
        scaler = self.accelerator.scaler
        if not scaler:
            return {}
        state = scaler.state_dict()
        return {"scale": state["scale"], "good_steps": state["_growth_tracker"]}

    def load_scaler_state(self, state: Mapping[str, float]) -> None:
        """Set a state that ``scaler_state`` of any strategy returned."""
        scaler = self.accelerator.scaler
        if scaler and state:
            changed = {"scale": state["scale"], "_growth_tracker": state["good_steps"]}
            scaler.load_state_dict({**scaler.state_dict(), **changed})

    def named_tensors(
        self,
    ) -> Iterator[tuple[str, tuple[int, ...], torch.dtype, Tensor | nn.Parameter]]:
        """Yield ``(name, shape, dtype, handle)`` of the tensors of a model file, in file order."""
        self.settle()
        for tensor, name in first_names(self.model).items():
            if name in self._names:
                yield name, *self._names[name], tensor

    def gather(self, name: str, handle: Tensor | nn.Parameter) -> Tensor:
        """Return a whole tensor for a model file, parameters in full precision, on rank 0's CPU."""
        tensor = self.full_tensor(handle) if isinstance(handle, nn.Parameter) else handle
        device = "cpu" if self.accelerator.is_main_process else tensor.device
        shape, _ = self._names[name]
        return tensor.detach().to(device).reshape(shape)

    def close(self) -> None:
        """Free all that would keep the process from ending. Called once, on every rank."""
        self.accelerator.free_memory()


def compute_in(model: nn.Module, dtype: torch.dtype | None) -> None:
    """Cast inputs to a dtype (None: unchanged) and outputs to float32, as autocast does."""
    from accelerate.utils import convert_to_fp32, recursively_apply

    def is_float(value: object) -> bool:
        return isinstance(value, Tensor) and value.is_floating_point()

    def cast_inputs(module: nn.Module, args: Any, kwargs: Any) -> Any:
        return recursively_apply(
            lambda tensor: tensor.to(dtype), (args, kwargs), test_type=is_float
        )

    if dtype:
        model.register_forward_pre_hook(cast_inputs, with_kwargs=True)
    model.register_forward_hook(lambda module, args, output: convert_to_fp32(output))
