"""A loop of your own: take the verified launch, and write plain Accelerate around it.

    accelerate launch --config_file accel_configs/zero2.yaml examples/own_loop.py
    torchrun --nproc_per_node 2 examples/own_loop.py --accel_config accel_configs/fsdp.yaml
    deepspeed --num_gpus 2 examples/own_loop.py --deepspeed ds_configs/zero3.json
    python examples/own_loop.py

Measured: the first command takes 18 s and ends at a loss of 0.11 after 60 steps (2026-11-21, two processes on two x86
CPU cores, torch 2.13, gloo).

What the files ask for is what runs, or an error before the first step; the same files work on CPUs.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from digits_cnn import DigitsCNN
from torch.utils.data import DataLoader

import trainer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--accel_config")
    parser.add_argument("--deepspeed")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--local_rank")  # the deepspeed launcher adds it
    args = parser.parse_args()
    config = trainer.TrainConfig(
        task="own_loop:none", max_steps=args.steps, micro_batch_size=32, max_grad_norm=1.0, lr=2e-3
    )
    launched = trainer.launch(config, accel_config=args.accel_config, deepspeed=args.deepspeed)
    accelerator, plan = launched.accelerator, launched.plan

    torch.manual_seed(0)
    task = DigitsCNN()
    data, model = task.build_data(), task.build_model()
    loader = DataLoader(data.train, batch_size=plan.micro_batch_size, shuffle=True, drop_last=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=plan.lr)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)

    step = 0
    while step < args.steps:
        for batch in loader:
            loss = F.cross_entropy(model(batch["image"]), batch["label"])
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), plan.max_grad_norm)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 20 == 0:
                accelerator.print(f"step {step}  loss {accelerator.reduce(loss.detach(), 'mean').item():.4f}")
            if step == args.steps:
                break
    accelerator.print(f"done under {plan.strategy} on {plan.world_size} processes")


if __name__ == "__main__":
    trainer.run(main)
