"""What is set up beside the parts of a training."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from plans import FOUR_GPUS, launched, plan, request

from trainer.build import share_cores
from trainer.distributed.agreement import Agreement
from trainer.strategies import strategy_class


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("bound", "count", "line"),
    [
        # One machine of 96 cores, for four processes there; Slurm may give each its own.
        (False, 24, "the optimizer runs on the CPU: 24 threads in each process (of 96 cores, for 4)"),
        (True, 96, "the optimizer runs on the CPU: 96 threads in each process (of 96 cores, for 1)"),
    ],
)
def test_an_optimizer_on_the_cpu_has_its_part_of_the_cores(
    bound: bool, count: int, line: str, threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    cores = list(range(96))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(cores))
    others = [(socket.gethostname(), [core + 96 * bound for core in cores])] * 3 + [("other", cores)] * 4
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
        ("zero2", {"deepspeed": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}}, True),
        ("zero2", {"deepspeed": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "none"}}}}, False),
    ],
)
def test_strategies_say_where_the_optimizer_steps(strategy: str, settings: dict[str, Any], on_cpu: bool) -> None:
    made = plan(request(strategy, **settings), launcher=launched(4), machine=FOUR_GPUS)
    assert strategy_class(strategy).steps_on_cpu(made) is on_cpu
