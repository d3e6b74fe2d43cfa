"""What comparing the ranks' copies of weights costs (``replica_check_every``).

    torchrun --nproc_per_node 2 benchmarks/replicas.py accel_configs/ddp.yaml

Prints one JSON object: medians of a step and of a comparison of a Llama of 8.7 million parameters,
one comparison after each step, in milliseconds, and what part of the time the comparison is where
it is made every 1,000 steps.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

import trainer
from trainer import Task, TrainConfig
from trainer.checks.replicas import checksums, first_difference
from trainer.distributed.agreement import Agreement
from trainer.launching import launch

STEPS = 60


def main() -> None:
    config = TrainConfig(task="benchmarks:Replicas", max_steps=1, micro_batch_size=4)
    launched = launch(config, accel_config=sys.argv[1])
    strategy, plan = launched.strategy, launched.plan
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(vocab_size=2048, hidden_size=320, intermediate_size=864, num_hidden_layers=6,
                    num_attention_heads=5, num_key_value_heads=5, use_cache=False)
    )  # fmt: skip
    parameters = sum(parameter.numel() for parameter in model.parameters())
    strategy.prepare(model, Task().build_optimizer(model, plan))
    agreement = Agreement()
    ids = torch.randint(0, 2048, (config.micro_batch_size, 128))
    seconds: dict[str, list[float]] = {"step": [], "comparison": []}
    for _ in range(STEPS):
        dist.barrier()
        begin = time.perf_counter()
        with strategy.micro_step(boundary=True):
            strategy.backward(strategy.model(input_ids=ids, labels=ids).loss)
        strategy.finish_step()
        dist.barrier()
        stepped = time.perf_counter()
        _, ranks = first_difference(agreement.gather(checksums(strategy)))
        assert ranks == []
        seconds["step"].append(stepped - begin)
        seconds["comparison"].append(time.perf_counter() - stepped)
    step, comparison = (
        1000 * statistics.median(values[STEPS // 6 :]) for values in seconds.values()
    )
    if launched.accelerator.is_main_process:
        found = {
            "parameters": parameters,
            "step_ms": round(step, 1),
            "comparison_ms": round(comparison, 1),
        }
        share = comparison / (comparison + 1000 * step)
        print(json.dumps({**found, "every_1000_percent": round(100 * share, 4)}), flush=True)
    strategy.close()


if __name__ == "__main__":
    trainer.run_and_exit(main)
