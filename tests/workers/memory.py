"""Run by torchrun under each strategy: bytes of the tensors that live on each rank, beside what the
formulas say.

Measured when parameters, gradients and optimizer state are all there: after the only backward of
the second step, and after the first of two. Prints one JSON object, with two values each.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

import torch
import torch.distributed as dist
from of_all_ranks import of_all
from torch import Tensor, nn

import trainer
from trainer import Task
from trainer.config.train_config import TrainConfig
from trainer.launching import launch
from trainer.strategies.memory import LAYOUTS, states_of

sys.path.insert(0, "examples")


def live_bytes(model: nn.Module | None = None) -> int:
    """Bytes of all storages that a tensor of this process refers to."""
    held: list[Tensor] = [obj for obj in gc.get_objects() if issubclass(type(obj), Tensor)]
    held += [tensor.grad for tensor in held if tensor.is_leaf and tensor.grad is not None]
    for parameter in model.parameters() if model is not None else ():
        held += [parameter.data, *([] if parameter.grad is None else [parameter.grad])]
    whole = [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in held]
    storages = {
        t.untyped_storage()._cdata: t.untyped_storage().nbytes()
        for t in whole
        if t.device.type == "cpu"
    }
    return sum(storages.values())


def build() -> tuple[nn.Module, Any]:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=2048, hidden_size=256, intermediate_size=688, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=4, use_cache=False)  # fmt: skip
    ids = torch.ones(1, 8, dtype=torch.long)
    return LlamaForCausalLM(
        config
    ), lambda model: model(input_ids=ids).logits.float().square().mean()


LARGEST = [0]  # bytes that lived when the ranks exchanged something, since it was last set to 0


def note_exchanges() -> None:
    """Look at the live bytes at each exchange; set before a package takes hold of the functions."""

    def noting(exchange: Any) -> Any:
        def noted(*given: Any, **more: Any) -> Any:
            LARGEST[0] = max(LARGEST[0], live_bytes())
            return exchange(*given, **more)

        return noted

    for name in ("broadcast", "all_reduce", "reduce_scatter_tensor", "reduce_scatter_single"):
        if hasattr(dist, name):
            setattr(dist, name, noting(getattr(dist, name)))


def main() -> None:
    note_exchanges()
    found = [measure(*sys.argv[1:3], steps) for steps in (1, 2)]
    if not dist.is_initialized() or dist.get_rank() == 0:
        print(json.dumps({key: [one[key] for one in found] for key in found[0]}), flush=True)


def measure(accel_config: str, how: str, steps: int) -> dict[str, float]:
    """The most bytes that a rank holds after the first of so many micro-batches of a second step,
    and the formulas'.
    """
    config = TrainConfig(
        task="tests:Memory", max_steps=1, micro_batch_size=2, accumulation_steps=steps
    )
    launched = launch(config, accel_config=accel_config)
    strategy = launched.strategy
    empty = live_bytes()
    model, loss_of = build()
    optimizer = Task().build_optimizer(model, launched.plan)
    sizes = [parameter.numel() for parameter in model.parameters()]
    host = [
        parameter.data for parameter in model.parameters()
    ]  # what each rank builds, on a GPU apart from the rest
    LARGEST[0] = before = live_bytes(model)
    strategy.prepare(model, optimizer)
    setting_up = LARGEST[0] - before
    del model, optimizer, host
    for boundary in [*(number == steps for number in range(1, steps + 1)), steps == 1]:
        LARGEST[0] = 0
        with strategy.micro_step(boundary=boundary):
            strategy.backward(loss_of(strategy.model))
        # gloo's two worker threads let go of the exchanged tensors a moment after the wait for the
        # exchange has returned, and later on a busy machine.
        looks = [live_bytes(strategy.model)]
        for _ in range(4 if dist.is_initialized() else 0):
            dist.barrier()
            time.sleep(0.1)
            looks.append(live_bytes(strategy.model))
        held = min(looks) - empty - exchange_bytes(strategy)
        if boundary:
            strategy.finish_step()
    most = [max(of_rank) for of_rank in zip(*of_all([held, setting_up]), strict=True)]
    strategy.close()

    layout, precision = LAYOUTS[how], launched.plan.mixed_precision
    width = 4 if precision == "no" else 2
    predicted = states_of(layout, sum(sizes), 2, precision=precision, accumulates=steps > 1).total
    if layout.is_zero and layout.stage == 3:
        # ZeRO-3 keeps small parameters whole beside their slices.
        predicted += width * sum(size for size in sizes if size <= 100_000)
    return {
        "measured": most[0],
        "setting up": most[1] / width,
        "predicted": predicted,
        "largest": max(sizes),
        "elements": sum(sizes),
    }


def exchange_bytes(strategy: Any) -> int:
    """The engine's own exchange buffers, whose size is a setting of its own."""
    buckets = getattr(getattr(strategy, "zero", None), "ipg_buckets", {}).values()
    buffers = [
        b
        for bucket in buckets
        for b in (bucket.buffer if isinstance(bucket.buffer, list) else [bucket.buffer])
    ]
    return sum(buffer.untyped_storage().nbytes() for buffer in buffers)


if __name__ == "__main__":
    trainer.run_and_exit(main)
