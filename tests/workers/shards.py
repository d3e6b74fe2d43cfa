"""Run by torchrun under each strategy: shards tile every parameter, and changing them changes the
model.

The model has what real ones have: odd shapes, a shared parameter, a frozen one, a scalar, a buffer,
and a part that is called as wrappers call what they wrap.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

import trainer
from trainer import Task
from trainer.checkpoint.export import ModelFile, export_model
from trainer.checkpoint.load_export import load_export
from trainer.config.train_config import TrainConfig
from trainer.distributed.agreement import Agreement
from trainer.launching import launch
from trainer.optim.ema import Average
from trainer.strategies import Strategy


class Odd(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.module = nn.Linear(5, 3)
        self.back = nn.Linear(3, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.frozen = nn.Linear(5, 5)
        self.frozen.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(1))
        self.register_buffer("shift", torch.arange(5.0))

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        hidden = self.embedding(ids) + self.frozen(self.shift)
        return self.head(self.back(self.module(hidden).tanh()) * self.scale)


def main() -> None:
    accel_config, folder = sys.argv[1], Path(sys.argv[2])
    config = TrainConfig(
        task="tests:Odd", max_steps=1, micro_batch_size=2, max_grad_norm=1.0, lr=0.1
    )
    launched = launch(config, accel_config=accel_config)
    strategy, plan = launched.strategy, launched.plan
    torch.manual_seed(0)
    model = Odd()
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    strategy.prepare(model, Task().build_optimizer(model, plan))
    strategy.verify()
    ids = torch.tensor([[1, 2, 3], [4, 5, 6]])

    whole = gathered(strategy)
    assert set(whole) == set(initial) - {"head.weight"}, sorted(whole)
    for name, value in whole.items():
        torch.testing.assert_close(value, initial[name], rtol=0, atol=0)
    check_tiles(strategy, whole)

    average = Average(
        [shard.tensor for shard in strategy.shards()], strategy.write_back, decay=0.75
    )
    with strategy.micro_step(boundary=True):
        loss = strategy.model(ids).float().log_softmax(-1)[..., 0].mean()
        strategy.backward(loss)
    result = strategy.finish_step()
    assert float(result.grad_norm) > 0
    average.update()
    after = gathered(strategy)
    assert not torch.equal(after["module.weight"], whole["module.weight"])
    assert torch.equal(after["frozen.weight"], whole["frozen.weight"])

    with average.applied():
        applied = gathered(strategy)
        output = strategy.model(ids).detach().clone()
    for name, value in applied.items():
        torch.testing.assert_close(value, 0.75 * whole[name] + 0.25 * after[name], msg=name)
    expected = Odd()
    with torch.no_grad():
        for name, parameter in expected.named_parameters():
            parameter.copy_(applied[name])
    torch.testing.assert_close(output, expected(ids), rtol=1e-5, atol=1e-5)
    for name, _, _, handle in strategy.named_tensors():
        torch.testing.assert_close(strategy.gather(name, handle), after[name], rtol=0, atol=0)

    export_model(strategy, Agreement(), ModelFile(), folder)
    loaded = Odd()
    load_export(loaded, folder)
    for name, value in after.items():
        torch.testing.assert_close(loaded.state_dict()[name], value, rtol=0, atol=0)
    assert loaded.head.weight is loaded.embedding.weight
    torch.testing.assert_close(loaded(ids), strategy.model(ids).detach(), rtol=1e-5, atol=1e-5)
    if dist.get_rank() == 0:
        print("tiles:", plan.strategy, plan.world_size)
    strategy.close()


def gathered(strategy: Strategy) -> dict[str, torch.Tensor]:
    return {
        name: strategy.gather(name, handle).clone()
        for name, _, _, handle in strategy.named_tensors()
    }


def check_tiles(strategy: Strategy, whole: dict[str, torch.Tensor]) -> None:
    mine = [(shard.name, shard.start, shard.tensor.cpu().clone()) for shard in strategy.shards()]
    everyone: list[list[tuple[str, int, torch.Tensor]]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, mine)
    learning = {
        name for name, value in whole.items() if not name.startswith("frozen") and name != "shift"
    }
    assert {name for shards in everyone for name, _, _ in shards} == learning
    for name in learning:
        counted = torch.zeros(whole[name].numel(), dtype=torch.int)
        for rank, shards in enumerate(everyone):
            for _, start, tensor in (shard for shard in shards if shard[0] == name):
                torch.testing.assert_close(
                    tensor, whole[name].flatten()[start : start + len(tensor)], rtol=0, atol=0
                )
                if rank == 0 or strategy.plan.strategy != "ddp":
                    counted[start : start + len(tensor)] += 1
        assert (counted == 1).all(), (name, counted)


if __name__ == "__main__":
    trainer.run_and_exit(main)
