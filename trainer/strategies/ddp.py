"""A single process, or replicas on several processes that exchange gradients (DDP).

Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training". torch
averages gradients in buckets during the last backward pass of a step.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import distributed as torch_ddp

from ..private.torch import numbers_without_gradient, rebuild_buckets
from ..text import listed
from .base import Strategy

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..run_plan import Plan


class DistributedDataParallel(torch_ddp.DistributedDataParallel):
    """DDP whose attributes are those of the model, as under other strategies (``model.config``)."""

    called = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        # Gradients are exchanged if the last call of a step was told to.
        self.called |= torch.is_grad_enabled() and self.require_backward_grad_sync
        return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class DDP(Strategy):
    """Every rank holds the whole model. A single process has nothing to exchange."""

    @classmethod
    def accelerator_arguments(cls, plan: Plan) -> dict[str, Any]:
        from accelerate import DistributedDataParallelKwargs

        # torch 2.13 has another name for broadcast_buffers, which Accelerate does not know yet.
        # Each rank would warn.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)

        ddp = DistributedDataParallelKwargs(
            # Saves a copy of the gradients (99 ms against 106 ms a step).
            gradient_as_bucket_view=True,
            # Under every strategy ranks agree on buffers before buffers are used.
            broadcast_buffers=False,
            find_unused_parameters=plan.find_unused_parameters,
            bucket_cap_mb=plan.bucket_cap_mb or 25,  # Accelerate's default, and torch's
        )
        return {"kwargs_handlers": [ddp]}

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().prepare(model, optimizer)
        if not isinstance(self.model, torch_ddp.DistributedDataParallel):
            return  # one process

        self.model.__class__ = DistributedDataParallel  # Accelerate makes torch's own
        if self.plan.reduce_dtype == "bf16":
            # torch's hook rounds a bucket, divides by the ranks and sends. torch refuses this hook
            # by name on CPUs, although the hook runs there. A lambda has another name.
            self.model.register_comm_hook(
                None, lambda group, bucket: bf16_compress_hook(group, bucket)
            )
        if not self.plan.find_unused_parameters:
            _arrange_buckets(self.model)

    def missed_exchange(self) -> str:
        if not isinstance(self.model, DistributedDataParallel):
            return ""
        if not self.model.called:
            return (
                "training_step did not call the model that it was given, so no gradient was "
                "averaged over the ranks. Begin with model(...). A method of the model, or "
                "model.module, goes past the exchange"
            )
        self.model.called = False

        # Numbers in the order of the trainable parameters. torch itself complains only at the next
        # forward pass, after a step with the rank's own gradients.
        unused = numbers_without_gradient(self.model)
        if not unused:
            return ""
        names = [name for name, _ in self.parameters()]
        return (
            f"the loss of this step does not depend on {listed([names[n] for n in unused])}: no "
            "gradient was averaged over the ranks. Set find_unused_parameters: true if that is "
            "meant, or freeze these parameters (requires_grad_(False))"
        )

    def range_of(self, parameter: nn.Parameter, rank: int) -> range:
        return range(parameter.numel())

    def write_back(self) -> None:
        """Do nothing: the shards are the parameters."""

    def full_tensor(self, parameter: nn.Parameter) -> Tensor:
        return parameter.data


def _arrange_buckets(model: torch_ddp.DistributedDataParallel) -> None:
    """Make DDP arrange its buckets before the first step, by a backward pass of zeros.

    DDP rearranges buckets after the first backward pass, and three ranks and more then add in
    another order: a resumed run would differ in the last bits.
    """
    trainable = [p for p in model.parameters() if p.requires_grad]
    model.reducer.prepare_for_backward([])

    # A backward pass reaches the last used parameter first, so this is the order of a model whose
    # layers follow each other.
    sums = torch.stack([parameter.sum().float() for parameter in trainable])
    (sums.sum() * 0.0).backward()  # type: ignore[no-untyped-call]

    rebuild_buckets(model)
    for parameter in trainable:
        parameter.grad = None
