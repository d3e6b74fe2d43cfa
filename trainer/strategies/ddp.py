"""One process, and replicas on several that exchange gradients (DDP).

Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data Parallel Training".
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import distributed as torch_ddp

from ..errors import LaunchError
from .base import Shard, Strategy

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from ..plan import Plan


class DistributedDataParallel(torch_ddp.DistributedDataParallel):
    """DDP whose model can be asked for what is its own (``model.config``), as everywhere else.

    Its methods too, where nothing is trained (``model.generate`` in ``evaluation_step``). In
    training only a call of the wrapper itself exchanges gradients, and torch does not notice where
    it was passed by.
    """

    called = False

    def forward(self, *inputs: Any, **named: Any) -> Any:
        self.called |= self.training
        return super().forward(*inputs, **named)  # type: ignore[no-untyped-call]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            model = super().__getattr__("module")
            found = getattr(model, name)
        if self.training and getattr(found, "__self__", None) is model:
            raise AttributeError(
                "training begins with a call of the model itself: model(...), "
                f"not model.{name}(...)"
            )
        return found


class DDP(Strategy):
    """Every rank holds the whole model; with one process there is nothing to exchange."""

    @classmethod
    def accelerator_arguments(cls, plan: Plan) -> dict[str, Any]:
        from accelerate import DistributedDataParallelKwargs

        # Views into the exchange buckets save one copy of the gradients (99 ms against 106 ms a
        # step). Buffers are not sent around before each forward: ranks agree on them when they are
        # used, under every strategy. torch 2.13 has another word for it, which Accelerate does not
        # know yet; one line a rank.
        warnings.filterwarnings("ignore", "`broadcast_buffers` is deprecated", FutureWarning)
        ddp = DistributedDataParallelKwargs(
            gradient_as_bucket_view=True,
            broadcast_buffers=False,
            find_unused_parameters=plan.find_unused_parameters,
            bucket_cap_mb=plan.bucket_cap_mb or 25,  # Accelerate's default, and torch's
        )
        return {"kwargs_handlers": [ddp]}

    def prepare(self, model: nn.Module, optimizer: Optimizer) -> None:
        super().prepare(model, optimizer)
        if isinstance(self.model, torch_ddp.DistributedDataParallel):
            self.model.__class__ = DistributedDataParallel  # Accelerate makes torch's own
            if not self.plan.find_unused_parameters:
                _settle_buckets(self.model)

    def verify(self) -> None:
        if isinstance(self.model, DistributedDataParallel) != (self.plan.strategy == "ddp"):
            raise LaunchError(
                f"asked for {self.plan.strategy}, but the model became {type(self.model).__name__}"
            )

    def missed_exchange(self) -> str:
        if not isinstance(self.model, DistributedDataParallel) or self.model.called:
            return ""
        return "training_step did not call the model that it was given"

    def shard(self, name: str, parameter: nn.Parameter) -> Shard:
        return self.replicated(name, parameter.data, parameter if parameter.requires_grad else None)

    def write_back(self) -> None:
        """Do nothing: the shards are the parameters."""

    def full_tensor(self, name: str, parameter: nn.Parameter) -> Tensor:
        return parameter.data

    def gradient_bytes(self) -> int:
        # The exchange buckets stay; before the boundary (no_sync) gradients gather beside them.
        copies = 2 if self.plan.strategy == "ddp" and self.plan.accumulation_steps > 1 else 1
        return copies * super().gradient_bytes()


def _settle_buckets(model: torch_ddp.DistributedDataParallel) -> None:
    """Have the buckets arranged before the first step, with one backward of zeros (one all-reduce
    of the model's size).

    DDP arranges them anew after its first backward, in the order in which gradients came. Three
    ranks and more then add in another order: the first step after a resume would differ in its last
    bits from that of the unbroken run.
    """
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.reducer.prepare_for_backward([])
    # The last made comes first in a backward pass, so this is the order of a model whose layers
    # follow each other.
    (torch.stack([parameter.sum().float() for parameter in learning]).sum() * 0.0).backward()  # type: ignore[no-untyped-call]
    model.reducer._rebuild_buckets()
    for parameter in learning:
        parameter.grad = None
