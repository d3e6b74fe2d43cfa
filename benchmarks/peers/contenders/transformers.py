"""transformers.Trainer with a model, an optimizer and a schedule of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.utils.data import default_collate
from transformers import Trainer, TrainerCallback, TrainingArguments

from ..turns import Turns
from ..work import CLIP, READ_EVERY, Work, build_data, loss_of
from .by_hand import weights_of


class Tick(TrainerCallback):
    """Tells the turns of each step."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.turns.step_done()


class InOrder(Trainer):
    """A Trainer that takes the samples in the order of the work, and this loss."""

    work: Work

    def _get_train_sampler(self, *args: Any) -> Any:
        return self.work.samples(whole=True)

    def compute_loss(self, model: nn.Module, inputs: Any, return_outputs: bool = False, **_: Any) -> Any:
        return loss_of(model, inputs)


def arguments(work: Work, turns: Turns, **more: Any) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(Path(work.folder) / f"run of {turns.name}"),
        max_steps=work.steps,
        per_device_train_batch_size=work.batch,
        max_grad_norm=CLIP,
        remove_unused_columns=False,
        use_cpu=True,
        ddp_find_unused_parameters=False,
        logging_steps=READ_EVERY,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        **more,
    )


def train(work: Work, turns: Turns) -> dict[str, Tensor]:
    model = work.build_model()
    optimizer = work.optimizer(model)
    running = InOrder(
        model,
        arguments(work, turns),
        train_dataset=build_data(work.model),
        data_collator=default_collate,
        callbacks=[Tick(turns)],
        optimizers=(optimizer, work.schedule(optimizer)),
    )
    running.work = work
    running.train()
    return weights_of(model)
