"""What a step does beside a loop by hand, counted: what it costs is measured by
``benchmarks/peers``.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Plain
from from_launcher import configured
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, default_collate

from trainer import Data, Trainer
from trainer.strategies.tensors import clip, local_norm


class Operations(TorchDispatchMode):
    """Counts what torch is asked to compute."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.counts[str(function).partition(".default")[0]] += 1
        return function(*args, **(kwargs or {}))


def by_hand(task: Plain, batch_size: int) -> Iterator[None]:
    """The loop that a user would write: clipped by global norm, with a schedule."""
    model = task.build_model()
    weights, others = (
        [p for p in model.parameters() if (p.dim() >= 2) == wide] for wide in (True, False)
    )
    groups = [{"params": weights, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    while True:
        for batch in DataLoader(
            task.build_data().train, batch_size=batch_size, shuffle=True, drop_last=True
        ):
            loss: Any = task.training_step(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1e6)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            yield


def operations(step: Callable[[], object]) -> Counter[str]:
    for _ in range(2):
        step()
    with Operations() as found:
        step()
    return found.counts


def test_a_step_computes_what_a_loop_by_hand_does_and_reads_the_norm(tmp_path: Path) -> None:
    config = configured(tmp_path, max_steps=9, log_every=8, keep_last=0, max_grad_norm=1e6)
    steps = Trainer(Plain(), config).steps()
    loop = by_hand(Plain(), config.micro_batch_size or 1)
    ours, theirs = operations(lambda: next(steps)), operations(lambda: next(loop))
    # The norm on the host, for clipping, for the step and for the message; the loss apart from its
    # graph.
    assert ours - theirs == {"aten._local_scalar_dense": 3, "aten.detach": 1}
    assert theirs["aten._foreach_mul_.Tensor"] == 1, (
        "what is below the limit, and written all the same"
    )
    assert ours.total() < theirs.total()


def test_gradients_below_the_limit_are_not_written_again() -> None:
    gradients = [torch.full((3,), 2.0), torch.full((4,), 1.0)]
    norm = local_norm(gradients)
    before = [gradient._version for gradient in gradients]
    clip(gradients, 4.01, norm)
    assert norm.item() == 4.0 and [gradient._version for gradient in gradients] == before
    clip(gradients, 2.0, norm)
    torch.testing.assert_close(local_norm(gradients), torch.tensor(2.0))


@pytest.mark.parametrize(
    "shapes", [[(1_000_000,)], [(30_000_001,)], [(1000, 999), (4097,), (7,), (4096, 3)]]
)
def test_the_norm_of_many_elements_is_that_of_float64(shapes: list[tuple[int, ...]]) -> None:
    generator = torch.Generator().manual_seed(0)
    gradients = [torch.randn(shape, generator=generator) for shape in shapes]
    true = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
    torchs = float(nn.utils.get_total_norm(gradients))
    assert abs(torchs / true - 1) > 1e-6, "on a CPU torch's own errs"
    norm = local_norm(gradients)
    assert abs(norm.item() / true - 1) <= 1e-7


def test_the_norm_takes_gradients_in_any_layout() -> None:
    drawn = torch.randn(64, 32, 5, 5, generator=torch.Generator().manual_seed(0))
    norm = local_norm([drawn.to(memory_format=torch.channels_last), torch.tensor(3.0)])
    assert norm.item() == pytest.approx(math.hypot(float(drawn.double().norm()), 3.0), rel=1e-7)


def test_a_task_may_take_labels_out_of_a_batch_that_the_data_keep(tmp_path: Path) -> None:
    """As tasks of transformers do; on a GPU the batch is another one anyway."""

    class Popped(Plain):
        def build_data(self) -> Data:
            data = super().build_data()
            batches = [default_collate([data.train[at], data.train[at + 1]]) for at in range(2)]
            return Data(train=batches, evaluation=batches, collate=lambda items: items[0])

        def training_step(self, model: Any, batch: Any) -> Any:
            labels = batch.pop("y")
            return (model(batch["x"]) - labels).square().mean()

    config = configured(
        tmp_path, max_steps=6, keep_last=0, micro_batch_size=1, evaluation_batch_size=1
    )
    assert Trainer(Popped(), config).fit()["eval/loss"] > 0
