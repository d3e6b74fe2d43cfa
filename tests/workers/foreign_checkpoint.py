"""Run by torchrun under a strategy: one step, then Accelerate's own checkpoint, and our export
beside it to compare.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from resuming import Odd, configured

import trainer
from trainer.checkpoint.export import ModelFile, export_model
from trainer.distributed.agreement import Agreement
from trainer.launching import launch


def main() -> None:
    accel_config, folder, world = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    launched = launch(configured(world, max_steps=1), accel_config=accel_config)
    strategy, task = launched.strategy, Odd()
    torch.manual_seed(0)
    model = task.build_model()
    strategy.prepare(model, task.build_optimizer(model, launched.plan))
    with strategy.micro_step(boundary=True):
        strategy.backward(task.training_step(strategy.model, task.build_data().train[:4]))
    strategy.finish_step()
    export_model(strategy, Agreement(), ModelFile(), folder / "ours")
    strategy.settle()
    launched.accelerator.save_state(str(folder / "theirs"))
    strategy.close()


if __name__ == "__main__":
    trainer.run_and_exit(main)
