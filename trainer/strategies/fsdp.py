"""Fully sharded parameters, gradients and optimizer state with torch's ``fully_shard`` (FSDP2).

Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError, LaunchError, Problem
from ..text import did_you_mean, listed
from .adapters import set_by_adapters
from .base import Shard, Strategy, compute_in
from .buffers import keep_buffers_fp32
from .gathered import carry_hooks, gathered_parameters
from .meta_device import allocate
from .tensor_parallel import Columns, divide, problems_of, refuse_without_transformers
from .tensors import canonical_state, full, hold_scalars_as_vectors, keep_in_step, local, unwrapped

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.optim import Optimizer

    from ..plan import Plan


class FSDP2(Strategy):
    """Each rank keeps rows of every parameter; whole layers exist only while they compute."""

    held = "rows of the parameters"

    @classmethod
    def backend(cls, plan: Plan) -> str:
        # Offloaded gradients lie on the CPU, where their norm is added up over ranks: NCCL alone
        # cannot.
        return "cuda:nccl,cpu:gloo" if plan.fsdp.get("cpu_offload") else super().backend(plan)

    @classmethod
    def steps_on_cpu(cls, plan: Plan) -> bool:
        return bool(plan.fsdp.get("cpu_offload"))

    @classmethod
    def prepare_process(cls, plan: Plan) -> None:
        refuse_without_transformers(plan)
        super().prepare_process(plan)

    @classmethod
    def accelerator_arguments(cls, plan: Plan) -> dict[str, Any]:
        from accelerate import FullyShardedDataParallelPlugin

        # It tells Accelerate which strategy runs; the sharding is done below, by the plan.
        settings = {
            key: value
            for key, value in plan.fsdp.items()
            if key not in ("dp_replicate_size", "tp_size")
        }
        plugin = FullyShardedDataParallelPlugin(
            **{**settings, "auto_wrap_policy": "NO_WRAP", "cpu_offload": False}
        )
        return {"fsdp_plugin": plugin}

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        put_back = keep_buffers_fp32(model)
        super().prepare(model, optimizer)
        self._set_by_adapters = set_by_adapters(self.model)
        if self.plan.mixed_precision != "no":
            put_back(self.accelerator.device)
            compute_in(unwrapped(self.model), None)

    def wrap(self, model: nn.Module, optimizer: Optimizer) -> None:
        """Shard the model in place, unit by unit, and hand the optimizer the sharded parameters.

        Accelerate 1.15 does this too, but shards the input embedding and the last norm as units of
        their own: it fails on models whose embedding lies in a unit already (BERT) and on heads
        that are not called.
        """
        from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard

        hold_scalars_as_vectors(model)
        names = {id(tensor): name for name, tensor in canonical_state(model)}
        hooks = {
            name: hooks
            for name, one in model.named_parameters()
            if (hooks := dict(one._backward_hooks or {}))
        }
        device = self.accelerator.device
        if self.plan.tensor_parallel_size > 1:
            self.notices = divide(model, self._mesh["tensor"])
            # Logits are a view of a distributed tensor: changed in place they raise, whatever this
            # warns of.
            warnings.filterwarnings(
                "ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning
            )
        units = self._units(model)
        if self.plan.fsdp.get("activation_checkpointing"):
            units = self._checkpointed(model, units)
        replicates = "replicate" in (self._mesh.mesh_dim_names or ())
        options: dict[str, Any] = {
            "mesh": self._mesh["replicate", "shard"] if replicates else self._mesh["shard"],
            "mp_policy": self._precision(),
            "offload_policy": CPUOffloadPolicy()
            if self.plan.fsdp.get("cpu_offload")
            else OffloadPolicy(),
            "ignored_params": self._ignored(model),
        }
        for unit in units:
            allocate(unit.modules(), device)
            fully_shard(
                unit, **options, reshard_after_forward=self.plan.fsdp["reshard_after_forward"]
            )
        allocate(model.modules(), device)
        root = fully_shard(
            model, **options
        )  # the root stays whole until its backward pass, which follows at once
        for module in model.modules():
            # Ranks that use different parameters reduce the same ones; torch before 2.13 has no
            # word for it.
            if isinstance(module, FSDPModule) and hasattr(
                module, "set_reduce_scatter_unused_params"
            ):
                module.set_reduce_scatter_unused_params(True)
        # Layers that stay whole after the forward pass do so until the whole backward pass has
        # ended, which may lead through them twice (the gradient of a gradient).
        root.set_reshard_after_backward(self.plan.fsdp["reshard_after_forward"])
        sharded = {name: tensor for name, tensor in canonical_state(model)}
        for group in optimizer.param_groups:
            group["params"] = [sharded[names[id(parameter)]] for parameter in group["params"]]
        carry_hooks(model, hooks)
        keep_in_step(model)
        self.model, self.prepared_optimizer = model, self.accelerator.prepare_optimizer(optimizer)
        self.accelerator._models.append(model)

    def divide(self, tensors: list[Tensor]) -> list[Tensor]:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        placements = [
            Replicate() if name == "replicate" else Shard(0)
            for name in self._mesh.mesh_dim_names or ()
        ]
        return [
            distribute_tensor(tensor, self._mesh, placements, src_data_rank=None)
            for tensor in tensors
        ]

    @cached_property
    def _mesh(self) -> DeviceMesh:
        """The ranks in order: groups with the whole model (HSDP), rows within, and parts of layers
        within.
        """
        from torch.distributed.device_mesh import init_device_mesh

        copies, parts = (
            int(self.plan.fsdp.get("dp_replicate_size", 1)),
            self.plan.tensor_parallel_size,
        )
        sizes = {
            "replicate": copies,
            "shard": self.plan.world_size // copies // parts,
            "tensor": parts,
        }
        sizes = {name: size for name, size in sizes.items() if size > 1 or name == "shard"}
        if (
            parts > 1
        ):  # whole tensors are gathered by one dimension after the other, which cannot be helped
            logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
        return init_device_mesh(
            self.accelerator.device.type, tuple(sizes.values()), mesh_dim_names=tuple(sizes)
        )

    def _precision(self) -> Any:
        from torch.distributed.fsdp import MixedPrecisionPolicy

        if self.plan.mixed_precision == "no":
            return MixedPrecisionPolicy()
        # Gradients are reduced in full precision, as DDP under autocast reduces them. No
        # output_dtype: it would hold for each unit, and the next one may not take full precision.
        compute = {"bf16": torch.bfloat16, "fp16": torch.float16}[self.plan.mixed_precision]
        return MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)

    def _units(self, model: nn.Module) -> list[nn.Module]:
        """List the modules that are gathered one at a time, inner ones first.

        A module that shares a parameter with another part of the model (a tied embedding) stays in
        the unit around it.
        """
        settings, policy = self.plan.fsdp, self.plan.fsdp.get("auto_wrap_policy", "NO_WRAP")
        classes = set(settings.get("transformer_cls_names_to_wrap") or _layer_classes(model))
        places: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            places.setdefault(id(parameter), []).append(name)
        paths: dict[nn.Module, list[str]] = {}
        for path, module in model.named_modules(remove_duplicate=False):
            paths.setdefault(module, []).append(f"{path}.")
        units: list[nn.Module] = []
        taken: set[int] = set()
        for module in reversed(list(paths)):
            own = {
                id(parameter): parameter.numel()
                for parameter in module.parameters()
                if id(parameter) not in taken
            }
            wanted = (policy == "TRANSFORMER_BASED_WRAP" and type(module).__name__ in classes) or (
                policy == "SIZE_BASED_WRAP"
                and sum(own.values()) > settings["min_num_params"]
                and not isinstance(module, nn.ModuleList | nn.ModuleDict)
            )
            shared = any(
                not name.startswith(tuple(paths[module])) for key in own for name in places[key]
            )
            if wanted and own and not shared and module is not model:
                units.append(module)
                taken.update(own)
        return units

    def _checkpointed(self, model: nn.Module, units: list[nn.Module]) -> list[nn.Module]:
        """Recompute the units in the backward pass, with the random numbers of the forward pass.

        Accelerate 1.15 leaves these out (preserve_rng_state=False): gradients under dropout were
        wrong.
        """
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
            checkpoint_wrapper,
            offload_wrapper,
        )

        if not units:
            raise LaunchError(
                "fsdp_activation_checkpointing needs units to recompute: set fsdp_auto_wrap_policy"
            )
        paths = {module: path for path, module in model.named_modules()}
        wrapped = []
        for unit in units:
            module: nn.Module = checkpoint_wrapper(unit)
            if self.plan.fsdp.get("activation_checkpointing_offload"):
                module = offload_wrapper(module)
            model.set_submodule(paths[unit], module)
            wrapped.append(module)
        return wrapped

    @classmethod
    def model_problems(cls, plan: Plan, model: nn.Module) -> list[Problem]:
        found = problems_of(plan, model)
        classes = {type(module).__name__ for module in model.modules()}
        origin = plan.origin("fsdp.transformer_cls_names_to_wrap")
        for name in plan.fsdp.get("transformer_cls_names_to_wrap") or ():
            if name not in classes:
                rule = f"the model has no module of this class; {did_you_mean(name, classes)}"
                found.append(Problem(origin=origin, value=name, rule=rule))
        if pattern := plan.fsdp.get("ignored_modules"):
            names = [name for name, _ in model.named_modules() if name]
            try:
                matched = any(re.fullmatch(str(pattern), name) for name in names)
                rule = (
                    ""
                    if matched
                    else f"matches the name of no module, such as {names[0] if names else 'none'!r}"
                )
            except re.error as error:
                rule = f"not a regular expression: {error}"
            if rule:
                found.append(
                    Problem(origin=plan.origin("fsdp.ignored_modules"), value=pattern, rule=rule)
                )
        return found

    def _ignored(self, model: nn.Module) -> set[nn.Parameter]:
        """Return the parameters of ``fsdp_ignored_modules``, which stay whole on every rank; they
        must not learn.
        """
        pattern = self.plan.fsdp.get("ignored_modules")
        modules = [
            module
            for name, module in model.named_modules()
            if pattern and re.fullmatch(str(pattern), name)
        ]
        for module in modules:
            allocate(module.modules(), self.accelerator.device)
        found = {parameter for module in modules for parameter in module.parameters()}
        if learns := [
            name for name, p in model.named_parameters() if p in found and p.requires_grad
        ]:
            rule = f"{listed(learns)} would learn on each rank alone; freeze them, or shard them"
            raise ConfigError(
                Problem(origin=self.plan.origin("fsdp.ignored_modules"), value=pattern, rule=rule)
            )
        for parameter in found:
            parameter.data = parameter.data.to(self.accelerator.device)
        return found

    def micro_step(self, *, boundary: bool) -> AbstractContextManager[None]:
        # Reduced and cut in each micro-batch, gradients add up as this rank's rows.
        return super().micro_step(boundary=boundary or self.plan.sync_each_batch)

    def temporary_parameters(self) -> Sequence[tuple[Any, nn.Parameter | None]]:
        return gathered_parameters(self.model, self._set_by_adapters)

    def backward(self, loss: Tensor) -> None:
        super().backward(loss)
        if not self.plan.fsdp["reshard_after_forward"]:
            self._reshard()

    def compile_whole(self, model: nn.Module, settings: dict[str, Any]) -> None:
        from torch.distributed.fsdp import FSDPModule

        # Tracing ends at the hooks that gather a layer's parameters: so it starts anew inside of
        # each.
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.forward = torch.compile(module.forward, **settings)

    def verify(self) -> None:
        from torch.distributed.fsdp import FSDPModule

        if not isinstance(self.model, FSDPModule):
            raise LaunchError(f"asked for fsdp, but the model became {type(self.model).__name__}")

    def shard(self, name: str, parameter: nn.Parameter) -> Shard:
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

        values, state_key = (
            local(parameter).detach().view(-1),
            parameter if parameter.requires_grad else None,
        )
        if not isinstance(parameter, DTensor):
            return self.replicated(name, values, state_key)
        mesh = parameter.device_mesh
        placed = zip(_dimensions_of(parameter), parameter.placements, strict=True)
        divided = {dim for dim, placement in placed if not placement.is_replicate()}
        copy, copies = 0, 1
        for dim in self._mesh.mesh_dim_names or ():
            if dim not in divided:
                copy = copy * self._mesh[dim].size() + self._mesh.get_local_rank(dim)
                copies *= self._mesh[dim].size()
        # Rows of some columns: how they lie is torch's to say, since tensor parallelism divides the
        # rows first.
        shape, offset = compute_local_shape_and_global_offset(
            parameter.shape, mesh, parameter.placements
        )
        row = parameter.numel() // parameter.shape[0] if parameter.numel() else 0
        columns = None
        if parameter.dim() > 1 and shape[1] < parameter.shape[1]:
            assert parameter.dim() == 2, "layers of a plan are matrices"
            columns = Columns(shape[1], parameter.shape[1])
        start = offset[0] * row + (offset[1] if columns else 0)
        return Shard(
            name=name,
            start=start,
            tensor=values,
            state_key=state_key,
            copy=copy,
            copies=copies,
            columns=columns,
        )

    def write_back(self) -> None:
        self.settle()

    def settle(self) -> None:
        # The root keeps its layers whole after a forward without backward (evaluation); what is
        # whole would be read as the parameter, and used again in the next forward, instead of the
        # shards.
        super().settle()
        self._reshard()

    def _reshard(self) -> None:
        from torch.distributed.fsdp import FSDPModule

        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def full_tensor(self, name: str, parameter: nn.Parameter) -> Tensor:
        # The mesh gathers on its own device; offloaded shards must come there first.
        return full(parameter.detach().to(self.accelerator.device))

    def gradient_bytes(self) -> int:
        # Before the boundary (no_sync) gradients are neither reduced nor cut.
        accumulating = self.plan.accumulation_steps > 1 and not self.plan.sync_each_batch
        if not accumulating:
            return super().gradient_bytes()
        parts = self.plan.tensor_parallel_size
        return sum(
            p.nbytes // (parts if "tensor" in _dimensions_of(p) else 1) for p in self.trainable
        )


def _dimensions_of(parameter: Tensor) -> Sequence[str]:
    """Name the dimensions of the mesh over which a parameter lies; none for one that is no
    distributed tensor.
    """
    mesh: DeviceMesh | None = getattr(parameter, "device_mesh", None)
    return (mesh.mesh_dim_names or ()) if mesh is not None else ()


def _layer_classes(model: nn.Module) -> set[str]:
    """Return the classes that transformers models name as their layers, wherever in the model they
    are.
    """
    return {
        name
        for module in model.modules()
        for name in getattr(module, "_no_split_modules", None) or ()
    }
