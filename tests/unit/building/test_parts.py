"""Parts of a training: what is set up beside them, and a model's tensors as they are written."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from layouts import Numbers, layout
from plans import FOUR_GPUS, launched, plan, request
from torch import nn

from trainer import Data, Task, TrainConfig
from trainer.building.parts import build_data, lone_example_notices, schedule_of, share_cores
from trainer.data.batches import Layout
from trainer.data.indexed import IndexedData
from trainer.distributed.agreement import Agreement
from trainer.errors import ConfigError
from trainer.strategies import strategy_class
from trainer.strategies.ddp import DDP


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("bound", "count", "line"),
    [
        # One machine of 96 cores, for four processes there; Slurm may give each its own.
        (
            False,
            24,
            "the optimizer runs on the CPU: 24 threads in each process (of 96 cores, for 4)",
        ),
        (
            True,
            96,
            "the optimizer runs on the CPU: 96 threads in each process (of 96 cores, for 1)",
        ),
    ],
)
def test_an_optimizer_on_the_cpu_has_its_part_of_the_cores(
    bound: bool, count: int, line: str, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = list(range(96))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cores))
    others = [(socket.gethostname(), [core + 96 * bound for core in cores])] * 3 + [
        ("other", cores)
    ] * 4
    one = Agreement()
    monkeypatch.setattr(one, "gather", lambda value: [value, *others])
    assert (share_cores(one), torch.get_num_threads()) == (line, count)


@pytest.mark.parametrize(
    ("strategy", "settings", "on_cpu"),
    [
        ("ddp", {}, False),
        ("fsdp", {"fsdp": {"cpu_offload": False}}, False),
        ("fsdp", {"fsdp": {"cpu_offload": True}}, True),
        ("zero2", {}, False),
        (
            "zero2",
            {
                "deepspeed": {
                    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}
                }
            },
            True,
        ),
        (
            "zero2",
            {
                "deepspeed": {
                    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}
                }
            },
            False,
        ),
    ],
)
def test_strategies_say_where_the_optimizer_steps(
    strategy: str, settings: dict[str, Any], on_cpu: bool
) -> None:
    made = plan(request(strategy, **settings), launcher=launched(4), machine=FOUR_GPUS)
    assert strategy_class(strategy).steps_on_cpu(made) is on_cpu


@pytest.fixture
def algorithms_of_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    yield
    torch.use_deterministic_algorithms(False)
    torch.utils.deterministic.fill_uninitialized_memory = True


@pytest.mark.usefixtures("algorithms_of_torch")
def test_deterministic_fills_no_memory_that_is_written_anyway() -> None:
    """torch's default writes NaN into each new buffer."""

    class Counting(Task):
        def build_data(self) -> Data:
            return Data(train=Numbers(4))

    config = TrainConfig(task="m:T", max_steps=1, deterministic=True)
    build_data(Counting(), config, layout(), {}, pin_memory=False)
    assert torch.are_deterministic_algorithms_enabled() and not torch.empty(1000).isnan().all()
    assert not torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.parametrize("main", [True, False])
def test_only_the_process_that_writes_copies_the_model_to_the_host(main: bool) -> None:
    class OnDevice(torch.Tensor):
        copies = 0

        def to(self, device: Any) -> Any:
            OnDevice.copies += str(device) == "cpu"
            return self

        @property
        def device(self) -> Any:
            return "cuda:0"

    OnDevice.copies = 0
    strategy = DDP.__new__(DDP)
    strategy.accelerator = SimpleNamespace(is_main_process=main)  # type: ignore[assignment]
    strategy._names = {"weight": ((2, 2), torch.float32)}
    buffer = torch.ones(4).as_subclass(OnDevice)
    assert strategy.gather("weight", buffer).shape == (2, 2)
    assert OnDevice.copies == main


def test_a_schedule_of_the_tasks_own_may_stand_beside_null() -> None:
    """As a YAML says that it names none."""

    class Mine(Task):
        def build_schedule(self, optimizer: Any, plan: Any, total_steps: int) -> Any:
            return torch.optim.lr_scheduler.ConstantLR(optimizer)

    optimizer, config = (
        torch.optim.SGD([torch.zeros(1)], lr=1.0),
        TrainConfig(task="m:T", max_steps=4),
    )
    made = plan(schedule=None)
    assert str(made.origin("schedule")).startswith("train.yaml")
    assert type(schedule_of(Mine(), config, made, optimizer, 4)[0]).__name__ == "ConstantLR"
    named = TrainConfig(task="m:T", max_steps=4, schedule="cosine")
    with pytest.raises(ConfigError, match="builds a schedule already; remove one of the two"):
        schedule_of(Mine(), named, plan(schedule="cosine"), optimizer, 4)


def test_a_schedule_that_follows_a_metric_is_refused() -> None:
    class Mine(Task):
        def build_schedule(self, optimizer: Any, plan: Any, total_steps: int) -> Any:
            return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)

    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    with pytest.raises(
        ConfigError,
        match=r"^Mine.build_schedule: 'ReduceLROnPlateau': follows a metric and not the",
    ):
        schedule_of(Mine(), TrainConfig(task="m:T", max_steps=4), plan(), optimizer, 4)


@pytest.mark.parametrize(
    ("world_size", "size", "steps", "rank"),
    [
        (2, 9, 10, 1),
        (2, 12, 10, None),
        (4, 22, 10, 0),
        (3, 26, 10, 1),
        (1, 9, 10, 0),
        (1, 8, 10, None),
        (2, 9, 1, None),
    ],
)
def test_one_example_for_a_batch_norm_is_told_before_the_first_step(
    world_size: int, size: int, steps: int, rank: int | None
) -> None:
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.BatchNorm2d(4))
    cut = Layout(rank=0, world_size=world_size, micro_batch_size=4, accumulation_steps=1)
    data = IndexedData(Numbers(size), cut, seed=0)
    told = lone_example_notices(model, data, steps)
    assert [line.split(" one example")[0] for line in told] == (
        [] if rank is None else [f"the last step of an epoch gives rank {rank}"]
    )
    model[1].eval()
    assert lone_example_notices(model, data, steps) == [], "what stays in evaluation mode takes it"
