"""Run by torchrun under each strategy: bytes of the tensors that live on each rank, beside what the formulas say.

Measured when parameters, gradients and optimizer state are all there: after the only backward of the second step, and
after the first of two backwards of the third. Prints one JSON object.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import trainer
from trainer import Task
from trainer.commands.planner.costs import case_of, footprint, parts_of
from trainer.config.train_config import TrainConfig
from trainer.launching import launch

sys.path.insert(0, "examples")


def live_bytes(model: nn.Module | None = None) -> int:
    """Bytes of all storages that a tensor of this process refers to."""
    held: list[Tensor] = [obj for obj in gc.get_objects() if issubclass(type(obj), Tensor)]
    held += [tensor.grad for tensor in held if tensor.is_leaf and tensor.grad is not None]
    for parameter in model.parameters() if model is not None else ():
        held += [parameter.data, *([] if parameter.grad is None else [parameter.grad])]
    whole = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in held]
    storages = {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in whole if t.device.type == "cpu"}
    return sum(storages.values())


def build(name: str) -> tuple[nn.Module, Any]:
    from digits_cnn import DigitsCNN
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    if name == "cnn":
        return DigitsCNN(width=128).build_model(), lambda model: model(torch.ones(2, 1, 8, 8)).float().square().mean()
    config = LlamaConfig(vocab_size=2048, hidden_size=256, intermediate_size=688, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=4, use_cache=False)  # fmt: skip
    ids = torch.ones(1, 8, dtype=torch.long)
    return LlamaForCausalLM(config), lambda model: model(input_ids=ids).logits.float().square().mean()


def main() -> None:
    accel_config, name = sys.argv[1:3]
    config = TrainConfig(task="tests:Memory", max_steps=1, micro_batch_size=2)
    launched = launch(config, accel_config=accel_config)
    strategy, plan = launched.strategy, launched.plan
    empty = live_bytes()
    model, loss_of = build(name)
    parts, optimizer = parts_of(model), Task().build_optimizer(model, plan)
    case = case_of(plan.as_dict())
    strategy.prepare(model, optimizer)
    states = []
    for steps in (1, 2):
        strategy.plan = dataclasses.replace(plan, accumulation_steps=steps)
        states.append(strategy.state_bytes())
    del model, optimizer
    measured = []
    for boundaries in ([True], [True], [False, True]):
        for boundary in boundaries:
            with strategy.micro_step(boundary=boundary):
                strategy.backward(loss_of(strategy.model))
            # gloo's worker threads (two) let go of what they exchanged a moment after the wait for it has returned.
            for _ in range(4 if dist.is_initialized() else 0):
                dist.barrier()
            measured.append(live_bytes(strategy.model) - empty - exchange_bytes(strategy))
        strategy.finish_step()
    worst = [[*measured[1:3], *states]]
    if dist.is_initialized():
        worst = [[0]] * dist.get_world_size()
        dist.all_gather_object(worst, [*measured[1:3], *states])
    most = [max(of_rank) for of_rank in zip(*worst, strict=True)]
    if launched.accelerator.is_main_process:
        cases = [dataclasses.replace(case, accumulation_steps=steps) for steps in (1, 2)]
        told = {
            "strategy": plan.strategy,
            "measured": most[:2],
            "states": most[2:],
            "predicted": [footprint(case, parts).states for case in cases],
        }
        print(json.dumps(told), flush=True)
    strategy.close()


def exchange_bytes(strategy: Any) -> int:
    """The engine's own exchange buffers, whose size is a setting of its own."""
    buckets = getattr(getattr(strategy, "zero", None), "ipg_buckets", {}).values()
    buffers = [b for bucket in buckets for b in (bucket.buffer if isinstance(bucket.buffer, list) else [bucket.buffer])]
    return sum(buffer.untyped_storage().nbytes() for buffer in buffers)


if __name__ == "__main__":
    trainer.run_and_exit(main)
