"""Bare Accelerate, as its guide writes the loop, under DDP."""

from __future__ import annotations

from accelerate import Accelerator
from torch import Tensor

from ..turns import Turns
from ..work import CLIP, READ_EVERY, Work, loss_of
from .by_hand import weights_of


def train(work: Work, turns: Turns) -> dict[str, Tensor]:
    # Otherwise a prepared schedule takes as many steps at once as there are processes.
    accelerator = Accelerator(cpu=True, step_scheduler_with_optimizer=False)
    assert accelerator.num_processes == work.world
    model = work.build_model()
    optimizer = work.optimizer(model)
    model, optimizer, schedule, loader = accelerator.prepare(
        model, optimizer, work.schedule(optimizer), work.loader(whole=True)
    )
    for step, batch in enumerate(loader, 1):
        with accelerator.accumulate(model):
            loss = loss_of(model, batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if step % READ_EVERY == 0:
            print(step, accelerator.reduce(loss.detach(), "mean").item())
        turns.step_done()
    return weights_of(model)
