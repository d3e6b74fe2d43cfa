"""Fully sharded parameters, gradients and optimizer state with torch's ``fully_shard`` (FSDP2).

Zhao et al. 2023, "PyTorch FSDP: Experiences on Scaling Fully Sharded Data Parallel".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError, LaunchError, Problem, did_you_mean
from .base import Shard, Strategy, compute_in
from .buffers import kept_in_full
from .costs import Case, Footprint, Part, elements, kept_whole
from .tensors import full, local, unwrapped

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..launching.plan import Plan


class FullyShardedTwo(Strategy):
    """Each rank keeps rows of every parameter; whole layers exist only while they compute."""

    names = ("fsdp",)

    @classmethod
    def accelerator_arguments(cls, plan: Plan) -> dict[str, Any]:
        from accelerate import FullyShardedDataParallelPlugin
        from torch.distributed.fsdp import MixedPrecisionPolicy

        # Accelerate reduces gradients in the compute dtype; DDP under autocast does not, so the policy is stated.
        # No output_dtype: it would hold for each wrapped layer, and the next one may not take full precision.
        compute = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}[plan.mixed_precision]
        policy = MixedPrecisionPolicy(param_dtype=compute, reduce_dtype=torch.float32)
        if compute is None:
            policy = MixedPrecisionPolicy()
        return {"fsdp_plugin": FullyShardedDataParallelPlugin(**plan.fsdp, mixed_precision_policy=policy)}

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        self._check_wrap_classes(model)
        put_back = kept_in_full(model)
        super().prepare(model, optimizer)
        if self.plan.mixed_precision != "no":
            put_back(self.accelerator.device)
            compute_in(unwrapped(self.model), None)

    def compile(self, settings: dict[str, Any]) -> None:
        from torch.distributed.fsdp import FSDPModule

        if settings.get("use_regional_compilation"):
            super().compile(settings)
            return
        # Tracing ends at the hooks that gather a layer's parameters: so it starts anew inside of each.
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.forward = torch.compile(module.forward, **settings)

    def _check_wrap_classes(self, model: nn.Module) -> None:
        asked = self.plan.fsdp.get("transformer_cls_names_to_wrap") or []
        known = {type(module).__name__ for module in model.modules()}
        for name in asked:
            if name not in known:
                rule = f"the model has no module of this class; {did_you_mean(name, known)}"
                # Its home reads "file:line (key)".
                where, _, key = self.plan.home("fsdp.transformer_cls_names_to_wrap").partition(" (")
                raise ConfigError(Problem(where=where, key=key.rstrip(")"), value=name, rule=rule))

    def verify(self) -> None:
        from torch.distributed.fsdp import FSDPModule

        if not isinstance(self.model, FSDPModule):
            raise LaunchError(f"asked for fsdp, but the model became {type(self.model).__name__}")

    def shards(self) -> Iterator[Shard]:
        for name, parameter in self.learning():
            yield self._rows(name, parameter, holder=parameter)

    def frozen_shards(self) -> Iterator[Shard]:
        for name, parameter in self.learning(False):
            yield self._rows(name, parameter, holder=None)

    def _rows(self, name: str, parameter: Tensor, *, holder: Tensor | None) -> Shard:
        whole = not hasattr(parameter, "to_local")
        # Shard(0) gives rank r the rows [r*c, (r+1)*c) with c = ceil(rows / world), the last ones maybe none.
        rows = parameter.shape[0] if parameter.dim() else 1
        chunk = -(-rows // self.plan.world_size)
        row = parameter.numel() // rows if rows else 0
        start = 0 if whole else min(self.accelerator.process_index * chunk, rows) * row
        values = local(parameter).detach().view(-1)
        return Shard(name=name, start=start, tensor=values, holder=holder, copied=whole)

    def write_back(self) -> None:
        self.settle()

    def settle(self) -> None:
        # The root keeps its layers whole after a forward without backward (evaluation); what is whole would be
        # read as the parameter, and used again in the next forward, instead of the shards.
        from torch.distributed.fsdp import FSDPModule

        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def full_tensor(self, name: str, parameter: nn.Parameter) -> Tensor:
        # The mesh gathers on its own device; offloaded shards must come there first.
        return full(parameter.detach().to(self.accelerator.device))

    @classmethod
    def footprint(cls, case: Case, parts: Sequence[Part]) -> Footprint:
        # Rank 0 has the most: ceil(rows / world) rows of each tensor.
        mine = [dataclasses.replace(p, numel=-(-p.rows // case.world_size) * (p.numel // p.rows or 1)) for p in parts]
        learning = elements(mine, learning=True)
        # Before the boundary (no_sync) gradients are neither reduced nor cut.
        gradients = elements(parts, learning=True) if case.accumulation_steps > 1 else learning
        unit = min(case.unit or elements(parts), elements(parts))
        states = Footprint(parameters=kept_whole(mine), gradients=4 * gradients, optimizer=4 * learning * case.slots)
        return dataclasses.replace(
            states,
            # A layer that computes and the next one on its way; the gradients of one before they are scattered.
            buffers=unit * (3 * case.compute_width + 4),
            host=states.states if case.offload == "all" else 0,
        )

    @classmethod
    def sent_bytes(cls, case: Case, parts: Sequence[Part]) -> int:
        # Parameters are gathered for each forward, and again for the backward if they were let go; gradients are
        # reduced in full precision at the boundary only.
        gathers = case.accumulation_steps * (2 if case.reshard else 1)
        gathered = gathers * case.compute_width * elements(parts)
        return int(case.ring * (gathered + 4 * elements(parts, learning=True)))
