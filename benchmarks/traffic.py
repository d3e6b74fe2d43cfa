"""Bytes that a rank really sends in one optimizer step: gloo over loopback, counted by
the kernel. Needs a network namespace of its own, so that nothing else is counted:

    unshare -n sh -c 'ip link set lo up && torchrun --nproc_per_node 2 benchmarks/traffic.py accel_configs/zero2.yaml'

Prints one JSON object: means over ten steps of a Llama of 2.6 million parameters, in bytes a rank and step.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

import trainer
from trainer import Task
from trainer.config.train_config import TrainConfig
from trainer.launching import launch

STEPS = 10


def sent_so_far() -> int:
    """Bytes sent over loopback so far, with the headers of the packets."""
    [line] = [
        line
        for line in Path("/proc/net/dev").read_text().splitlines()
        if line.strip().startswith("lo:")
    ]
    return int(line.split(":")[1].split()[8])


def main() -> None:
    config = TrainConfig(task="benchmarks:Traffic", max_steps=1, micro_batch_size=2)
    launched = launch(config, accel_config=sys.argv[1])
    strategy, plan = launched.strategy, launched.plan
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=2048, hidden_size=256, intermediate_size=688, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=4, use_cache=False)
    )  # fmt: skip
    parameters = sum(parameter.numel() for parameter in model.parameters())
    strategy.prepare(model, Task().build_optimizer(model, plan))
    ids = torch.ones(1, 8, dtype=torch.long)
    begin = 0
    for step in range(STEPS + 2):  # the first two set buffers and orders up
        dist.barrier()
        if step == 2:
            begin = sent_so_far()
        with strategy.micro_step(boundary=True):
            strategy.backward(strategy.model(input_ids=ids).logits.float().square().mean())
        strategy.finish_step()
    dist.barrier()
    measured = (sent_so_far() - begin) / STEPS / plan.world_size
    if launched.accelerator.is_main_process:
        print(
            json.dumps(
                {"strategy": plan.strategy, "measured": round(measured), "parameters": parameters}
            ),
            flush=True,
        )
    strategy.close()


if __name__ == "__main__":
    trainer.run_and_exit(main)
