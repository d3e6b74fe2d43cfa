"""The loop as a good engineer writes it with torch alone, on one process, under DDP and with
``fully_shard``.
"""

from __future__ import annotations

import torch.distributed as dist
from torch import Tensor, nn

from ..turns import Turns
from ..work import CLIP, READ_EVERY, Work, loss_of


def divided(model: nn.Module, work: Work) -> nn.Module:
    """Return the model as the strategy wants it."""
    if work.strategy == "ddp":
        return nn.parallel.DistributedDataParallel(
            model, gradient_as_bucket_view=True, broadcast_buffers=False
        )
    if work.strategy == "fsdp":
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (work.world,))
        for block in model.blocks:  # type: ignore[union-attr]
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    return model


def train(work: Work, turns: Turns) -> dict[str, Tensor]:
    if work.world > 1:
        dist.init_process_group("gloo")
    model = divided(work.build_model(), work)
    optimizer = work.optimizer(model)
    schedule = work.schedule(optimizer)
    for step, batch in enumerate(work.loader(), 1):
        loss = loss_of(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % READ_EVERY == 0:
            shown = loss.detach()
            if work.world > 1:
                dist.all_reduce(shown)
            print(step, shown.item() / work.world)
        turns.step_done()
    return weights_of(model)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Return the whole weights by the names of the model itself. Collective: call on every rank."""
    found = {name.removeprefix("module."): value for name, value in model.named_parameters()}
    return {
        name: value.full_tensor() if hasattr(value, "full_tensor") else value
        for name, value in found.items()
    }
