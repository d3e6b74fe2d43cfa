"""This framework, through ``fit()``, with all that is on by default and a callback that counts the
steps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor, nn

import trainer
from trainer.distributed.started_by import detect

from ..turns import Turns
from ..work import CLIP, DECAY, FINAL, LR, READ_EVERY, Work, build_data, loss_of


@dataclass(frozen=True, kw_only=True)
class Same(trainer.Task):
    """The work of all contenders."""

    folder: str

    def build_data(self) -> trainer.Data:
        return trainer.Data(train=build_data(Work.read(self.folder).model))

    def build_model(self) -> nn.Module:
        return Work.read(self.folder).build_model()

    def training_step(self, model: nn.Module, batch: Any) -> Tensor:
        return loss_of(model, batch)


class Tick(trainer.Callback):
    """Tells the turns of each step."""

    def __init__(self, turns: Turns) -> None:
        self.turns = turns

    def on_step(self, trainer: Any, info: Any) -> None:
        self.turns.step_done()


def stop_the_clock(turns: Turns) -> None:
    """Have waiting for a turn take no time: votes and watch follow the time of a step, which the
    wait is no part of.

    It makes a call of ``time.monotonic`` 0.6 us longer. ``perf_counter``, which only measures,
    stays as it is.
    """
    running = time.monotonic

    def monotonic() -> float:
        since = turns.waits_since  # read once: it ends in another thread
        return running() - turns.waited - (0.0 if since is None else time.perf_counter() - since)

    time.monotonic = monotonic


def train(work: Work, turns: Turns) -> dict[str, Tensor]:
    return run(work, turns, Same(folder=work.folder))


def train_llama(work: Work, turns: Turns) -> dict[str, Tensor]:
    from ..llama import fine_tuned

    return run(work, turns, fine_tuned(Path(work.folder)))


def run(work: Work, turns: Turns, task: trainer.Task) -> dict[str, Tensor]:
    stop_the_clock(turns)
    output_dir = Path(work.folder) / f"run of {turns.name}"
    config = trainer.TrainConfig(
        task="benchmark:none",
        output_dir=str(output_dir),
        max_steps=work.steps,
        micro_batch_size=work.batch,
        optimizer="adamw",
        lr=LR,
        weight_decay=DECAY,
        schedule="cosine",
        warmup_steps=work.warm_up,
        final_lr_ratio=FINAL,
        max_grad_norm=CLIP,
        log_every=READ_EVERY,
        keep_last=0,
    )
    # accelerate launch names the file itself.
    needs_file = work.strategy != "single" and detect().name != "accelerate"
    file = f"accel_configs/{work.strategy}.yaml" if needs_file else None
    launched = trainer.launch(config, accel_config=file)
    trainer.Trainer(task, config, launched, callbacks=[Tick(turns)]).fit()
    return load_file(output_dir / "model" / "model.safetensors")
