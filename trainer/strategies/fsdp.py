"""Fully sharded parameters, gradients and optimizer state with torch's ``fully_shard`` (FSDP2).

Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel". A rank holds
some rows of every tensor, as DTensors. The units of a model (the layers) are gathered in turn. With
several micro-batches a step, whole gradients are added up and averaged in the last micro-batch,
unless ``sync_each_batch``. Under HSDP groups of ranks hold copies of the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.compiler import disable
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from ..errors import LaunchError
from ..private.accelerate import register_model
from ..private.torch import gradient_hooks, local_of
from ..private.torch_fsdp import (
    complete_sums,
    end_pass,
    gathered_by,
    holds_gradients,
    read_whole_numbers,
    recomputed,
)
from ..private.transformers import layer_classes
from ..text import did_you_mean
from .base import Shard, Strategy
from .gathered import carry_hooks, units_of
from .meta_device import allocate, replace_in_optimizer
from .scalars import hold_scalars_as_vectors
from .tensors import (
    DTYPES,
    keep_in_step,
)

if TYPE_CHECKING:
    from accelerate import Accelerator
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from ..run_plan import Plan


class Scaler(ShardedGradScaler):
    """torch's scaler, with a flag of the shape of the count from which a fused AdamW takes it."""

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: Tensor, found_inf: Tensor, allow_fp16: bool = True
    ) -> dict[torch.device, Tensor]:
        return super()._unscale_grads_(optimizer, inv_scale, found_inf.squeeze(), allow_fp16)


class FSDP2(Strategy):
    """Each rank keeps rows of every parameter. Whole layers exist only while they compute."""

    held = "rows of the parameters"
    known_errors: Mapping[str, str] = {
        **Strategy.known_errors,
        "is a view and is being modified inplace. This view was created inside a custom Function": (
            "a layer changes its input in place, which the hooks of FSDP2 forbid: write x = x + 1, "
            "not x += 1, or gather the model as a whole (fsdp_auto_wrap_policy: NO_WRAP)"
        ),
        "out of bounds for storage of size 0": (
            "a gradient of a gradient reads parameters that are freed: set "
            "fsdp_reshard_after_forward: false (docs/numbers.md)"
        ),
        "got mixed torch.Tensor and DTensor": (
            "a layer computed outside of a call of its unit, so its parameters were not gathered: "
            "call model(...), not model.forward(...) or a method, and the blocks of a list of "
            "layers, not their parts (or name other units: fsdp_transformer_layer_cls_to_wrap). A "
            "task that reads parameters itself needs fsdp_reshard_after_forward: false "
            "(docs/troubleshooting.md)"
        ),
    }

    def __init__(self, plan: Plan, accelerator: Accelerator) -> None:
        super().__init__(plan, accelerator)
        self._sharded: list[Any] = []
        self._rows: dict[Tensor, nn.Parameter] = {}  # the optimizer's, by parameter of the model
        self._copies: int = plan.fsdp.get("dp_replicate_size", 1)

    # -- set-up -----------------------------------------------------------------------------------

    @classmethod
    def backend(cls, plan: Plan) -> str:
        # Offloaded gradients are on the CPU. NCCL alone cannot add up their norm over ranks there.
        if cls.steps_on_cpu(plan):
            return "cuda:nccl,cpu:gloo"
        return super().backend(plan)

    @classmethod
    def steps_on_cpu(cls, plan: Plan) -> bool:
        return bool(plan.fsdp.get("cpu_offload"))

    @classmethod
    def accelerator_arguments(cls, plan: Plan) -> dict[str, Any]:
        from accelerate import FullyShardedDataParallelPlugin

        # The plugin tells Accelerate which strategy runs. ``wrap`` shards, by the plan.
        return {
            "fsdp_plugin": FullyShardedDataParallelPlugin(
                fsdp_version=2, auto_wrap_policy="NO_WRAP"
            )
        }

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Shard the model in place, unit by unit, and hand the optimizer the sharded parameters.

        Accelerate 1.15 also makes units of the input embedding and the last norm, which fails on
        models whose embedding is in a unit already (BERT) and on heads that are not called.
        """
        if self.accelerator.scaler:  # ranks agree on gradients that are not finite
            self.accelerator.scaler = Scaler(self.accelerator.device.type)
        hold_scalars_as_vectors(model)  # FSDP2 cannot cut a scalar
        read_whole_numbers()

        # ``fully_shard`` replaces the parameters: hooks are read before.
        before = list(model.parameters())
        hooks = {name: gradient_hooks(own) for name, own in model.named_parameters()}

        # The wrapper that recomputes a unit becomes the unit, so that a single gathering serves the
        # second pass and the backward pass.
        units = self._units(model)
        if self.plan.fsdp.get("activation_checkpointing"):
            units = self._checkpointed(model, units)

        self._shard_units(model, units)

        # The optimizer steps this rank's rows as ordinary tensors. Each operation on a DTensor
        # first finds out how the result is divided: 19.6 ms of Python instead of 2.5 for a step of
        # fused AdamW on 288 parameters, with the same bits.
        rows = dict(zip(before, model.parameters(), strict=True))
        for old, own in rows.items():
            if own.requires_grad:
                self._rows[own] = rows[old] = nn.Parameter(local_of(own))
        replace_in_optimizer(optimizer, rows)
        optimizer.register_step_pre_hook(self._hand_over)
        carry_hooks(model, hooks)
        keep_in_step(model)

        self.shard_group = self._mesh.get_group("shard")
        self.model = model
        self.prepared_optimizer = self.accelerator.prepare_optimizer(optimizer)
        register_model(self.accelerator, model)

    def _shard_units(self, model: nn.Module, units: list[nn.Module]) -> None:
        """Shard the units and then the rest of the model. Collective: call on every rank."""
        reshard = self.plan.fsdp["reshard_after_forward"]
        options: dict[str, Any] = {
            "mesh": self._mesh,
            "mp_policy": self._precision(),
            "offload_policy": CPUOffloadPolicy()
            if self.steps_on_cpu(self.plan)
            else OffloadPolicy(),
        }

        kinds = Counter(type(unit).__name__ for unit in units)
        parts = [f"{number} {kind}" for kind, number in kinds.items()]
        rest = "the rest of the model" if units else "the whole model"
        self.notices = [f"FSDP2 gathers in turn: {', '.join([*parts, rest])}"]

        # In turn, so that of a model on the meta device a single unit is whole.
        device = self.accelerator.device
        for unit in units:
            allocate(unit.modules(), device, {})
            fully_shard(unit, **options, reshard_after_forward=reshard)
        allocate(model.modules(), device, {})
        # The root stays whole until the backward pass, which follows at once.
        root: Any = fully_shard(model, **options)

        self._sharded = list(units_of(model).values())
        model.register_forward_hook(self._settle_after_error, always_call=True)
        for number, unit in enumerate(self._sharded):
            # Ranks that use different parameters then reduce the same parameters. torch has the
            # method since 2.13.
            if hasattr(unit, "set_reduce_scatter_unused_params"):
                unit.set_reduce_scatter_unused_params(True)
            if unit is not model:
                note = disable(partial(self._note_call, number))  # type: ignore[no-untyped-call]
                unit.register_forward_pre_hook(note)

        # Layers that stay whole after the forward pass stay whole until the whole backward pass has
        # ended, which may lead through a layer twice (the gradient of a gradient).
        root.set_reshard_after_backward(reshard)

    @cached_property
    def _mesh(self) -> DeviceMesh:
        """The ranks as a grid: copies of the model if there are several (HSDP), then rows."""
        from torch.distributed.device_mesh import init_device_mesh

        sizes = {"shard": self.plan.world_size // self._copies}
        if self._copies > 1:
            sizes = {"replicate": self._copies, **sizes}
        return init_device_mesh(
            self.accelerator.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )

    def _precision(self) -> MixedPrecisionPolicy:
        # Gradients are reduced in full precision, as by DDP under autocast, unless the config says
        # otherwise. No output_dtype, because every unit would cast outputs, and the next unit
        # may not take full precision.
        compute = DTYPES.get(self.plan.mixed_precision)
        reduce = torch.float32 if compute else None
        if self.plan.reduce_dtype == "bf16":
            reduce = torch.bfloat16
        return MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=reduce)

    def _units(self, model: nn.Module) -> list[nn.Module]:
        """List the modules that are gathered in turn, inner modules first.

        A module that shares a parameter with another part of the model (a tied embedding) belongs
        to the unit around the module.
        """
        classes = set(self.plan.fsdp.get("transformer_cls_names_to_wrap") or ())
        known = {type(module).__name__ for module in model.modules()}
        for name in sorted(classes - known):
            origin = self.plan.origin("fsdp.transformer_cls_names_to_wrap")
            raise origin.error(
                f"the model has no module of this class; {did_you_mean(name, known)}", name
            )
        if not classes:  # the layers of the transformers models within the model
            classes.update(*map(layer_classes, model.modules()))
        layers = {module for module in model.modules() if type(module).__name__ in classes}
        # A rank that leaves a block out would not take part in the block's exchanges.
        if not classes and not self.plan.find_unused_parameters:
            layers = _blocks(model)

        places = Counter(
            own for module in model.modules() for own in module.parameters(recurse=False)
        )
        units: list[nn.Module] = []
        in_a_unit: set[nn.Parameter] = set()
        for module in reversed(list(model.modules())):
            own = [parameter for parameter in module.parameters() if parameter not in in_a_unit]
            elements = sum(parameter.numel() for parameter in own)
            is_shared = any(places[parameter] > 1 for parameter in own)
            if module is model or is_shared or not own:
                continue
            if self._is_unit(module, layers, elements):
                units.append(module)
                in_a_unit.update(own)
        return units

    def _is_unit(self, module: nn.Module, layers: set[nn.Module], elements: int) -> bool:
        """Return whether the launch file's policy makes a module with so many elements a unit."""
        policy = self.plan.fsdp.get("auto_wrap_policy", "NO_WRAP")
        if policy == "TRANSFORMER_BASED_WRAP":
            return module in layers
        if policy == "SIZE_BASED_WRAP" and not isinstance(module, nn.ModuleList | nn.ModuleDict):
            return bool(elements > self.plan.fsdp["min_num_params"])
        return False

    def _checkpointed(self, model: nn.Module, units: list[nn.Module]) -> list[nn.Module]:
        """Recompute the units in the backward pass, with the random numbers of the forward pass."""
        if not units:
            raise LaunchError(
                "fsdp_activation_checkpointing needs units to recompute: "
                "set fsdp_auto_wrap_policy, and name the classes of layers in "
                "fsdp_transformer_layer_cls_to_wrap"
            )

        offload = self.plan.fsdp.get("activation_checkpointing_offload", False)
        paths = {module: path for path, module in model.named_modules()}
        wrapped = []
        for unit in units:
            module = recomputed(unit, offload=offload)
            model.set_submodule(paths[unit], module)
            wrapped.append(module)
        return wrapped

    # -- one step ---------------------------------------------------------------------------------

    def micro_step(self, *, boundary: bool) -> AbstractContextManager[None]:
        # With sync_each_batch gradients are averaged in each micro-batch, and add up as this rank's
        # rows.
        if boundary and self.plan.accumulation_steps > 1:
            for unit in self._sharded:
                complete_sums(unit)
        return super().micro_step(boundary=boundary or self.plan.sync_each_batch)

    def _note_call(self, number: int, unit: nn.Module, args: Any) -> None:
        # Two ranks that call different units of one size would gather each other's rows.
        if unit.training:
            self.note_order(number)

    def _settle_after_error(self, model: nn.Module, args: Any, output: Any) -> None:
        # Behind an error in a forward pass, which a task may catch, there is no output.
        if output is None:
            self.settle()

    def temporary_parameters(self) -> Sequence[tuple[Any, nn.Parameter | None]]:
        return [own for unit in self._sharded for own in gathered_by(unit)]

    def missed_exchange(self) -> str:
        if not any(map(holds_gradients, self._sharded)):
            return ""
        self.settle()  # the units are still gathered
        return (
            "the loss goes past the outputs in which FSDP2 looks for tensors, so no gradient was "
            "averaged over the ranks: compute the loss from the tensors that model(...) returns "
            "(alone, in tuples, lists, dicts or dataclasses), not from other objects or values "
            "that a hook keeps, and change no output in place"
        )

    def stepped(self) -> Sequence[nn.Parameter]:
        self._hand_over()
        return [*self._rows.values()]

    def _hand_over(self, *_: object) -> None:
        """Give the optimizer the gradients, and rows that FSDP2 has moved since."""
        for parameter, row in self._rows.items():
            row.data = local_of(parameter)
            if parameter.grad is not None:
                row.grad, parameter.grad = local_of(parameter.grad), None

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        if not self.plan.fsdp["reshard_after_forward"]:
            self.settle()

    def compile_whole(self, model: nn.Module, settings: dict[str, Any]) -> None:
        # Tracing ends at the hooks that gather a unit's parameters, so each unit is compiled inside
        # of the hooks.
        for unit in self._sharded:
            super().compile_whole(unit, settings)

    # -- weights ----------------------------------------------------------------------------------

    def shard(self, name: str, parameter: nn.Parameter) -> Shard:
        rank = self.accelerator.process_index
        return Shard(
            name=name,
            start=self.range_of(parameter, rank).start,
            tensor=local_of(parameter).detach().view(-1),
            state_key=self._rows[parameter] if parameter.requires_grad else None,
            copy=rank * self._copies // self.plan.world_size,
            copies=self._copies,
        )

    def range_of(self, parameter: nn.Parameter, rank: int) -> range:
        # As torch.chunk cuts the first dimension.
        height = max(1, parameter.shape[0])
        width = parameter.numel() // height
        parts = self.plan.world_size // self._copies
        size = -(-height // parts) * width
        return range(parameter.numel())[rank % parts * size :][:size]

    def write_back(self) -> None:
        self.settle()

    def settle(self) -> None:
        # After a forward pass without a backward pass (evaluation), or that has failed, units are
        # still gathered. The gathered values would be read as the parameters, and used again in the
        # next forward pass, instead of the shards.
        for unit in self._sharded:
            end_pass(unit)
            unit.reshard()

    def full_tensor(self, parameter: Any) -> Tensor:
        # The mesh gathers on the accelerator. Offloaded shards must come there first.
        return parameter.detach().to(self.accelerator.device).full_tensor()  # type: ignore[no-any-return]


def _blocks(model: nn.Module) -> set[nn.Module]:
    """Return the repeated children of the outermost ModuleLists that have children: the layers."""
    blocks: set[nn.Module] = set()
    inner: set[nn.Module] = set()
    for module in model.modules():  # outer modules come before inner modules
        if not isinstance(module, nn.ModuleList) or module in inner:
            continue
        kinds = Counter(map(type, module))
        for child in module:
            is_called = type(child).forward is not nn.Module.forward
            if kinds[type(child)] > 1 and is_called and any(child.children()):
                blocks.add(child)
                inner.update(child.modules())
    return blocks
