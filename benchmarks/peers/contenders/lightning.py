"""Lightning's two: Fabric, a loop of one's own, and the Trainer."""

from __future__ import annotations

from typing import Any

import lightning
from lightning.fabric.plugins.environments import TorchElasticEnvironment
from lightning.fabric.strategies import DDPStrategy as FabricDDP
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor

from ..turns import Turns
from ..work import CLIP, READ_EVERY, Work, loss_of
from .by_hand import weights_of

DDP = {"gradient_as_bucket_view": True, "broadcast_buffers": False, "process_group_backend": "gloo"}


def connected(work: Work, ddp: Any) -> dict[str, Any]:
    """Return the settings of the processes: they are started, and find each other by torchrun's
    variables.
    """
    if work.world == 1:
        return {"accelerator": "cpu", "devices": 1}
    return {
        "accelerator": "cpu",
        "devices": work.world,
        "strategy": ddp(**DDP),
        "plugins": [TorchElasticEnvironment()],
    }


def train_with_fabric(work: Work, turns: Turns) -> dict[str, Tensor]:
    fabric = lightning.Fabric(**connected(work, FabricDDP))
    fabric.launch()
    model = work.build_model()
    optimizer = work.optimizer(model)
    schedule = work.schedule(optimizer)
    model, optimizer = fabric.setup(model, optimizer)
    for step, batch in enumerate(
        fabric.setup_dataloaders(work.loader(), use_distributed_sampler=False), 1
    ):
        loss = loss_of(model, batch)
        fabric.backward(loss)
        fabric.clip_gradients(model, optimizer, max_norm=CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        if step % READ_EVERY == 0:
            print(step, fabric.all_reduce(loss.detach(), reduce_op="mean").item())
        turns.step_done()
    return weights_of(model.module)


class Module(lightning.LightningModule):
    """The work as the Trainer wants it."""

    def __init__(self, work: Work) -> None:
        super().__init__()
        self.work, self.model = work, work.build_model()

    def training_step(self, batch: Any, number: int) -> Tensor:
        loss = loss_of(self.model, batch)
        if (number + 1) % READ_EVERY == 0:
            print(number + 1, self.trainer.strategy.reduce(loss.detach(), reduce_op="mean").item())
        return loss

    def configure_optimizers(self) -> Any:
        optimizer = self.work.optimizer(self.model)
        schedule = {"scheduler": self.work.schedule(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


class Tick(lightning.Callback):
    """Tells the turns of each step."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def on_train_batch_end(self, *args: Any) -> None:
        self.turns.step_done()


def train_with_trainer(work: Work, turns: Turns) -> dict[str, Tensor]:
    module = Module(work)
    running = lightning.Trainer(
        max_steps=work.steps,
        gradient_clip_val=CLIP,
        callbacks=[Tick(turns)],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
        **connected(work, DDPStrategy),
    )
    running.fit(module, work.loader())
    return weights_of(module.model)
