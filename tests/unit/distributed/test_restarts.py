"""When the ranks of another attempt are connected under names of its own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from trainer.distributed import restarts
from trainer.distributed.restarts import connect_attempt

AGAIN = {"TORCHELASTIC_RESTART_COUNT": "2", "WORLD_SIZE": "2"}
SEVERAL_AGENTS = {**AGAIN, "GROUP_WORLD_SIZE": "2"}
C10D = ["torchrun", "--rdzv_backend", "c10d", "train.py"]
STATIC = ["torchrun", "--master_addr", "node1", "train.py"]


@pytest.mark.parametrize(
    ("variables", "launcher", "connects"),
    [
        ({}, STATIC, False),
        ({"WORLD_SIZE": "2"}, STATIC, False),
        ({"TORCHELASTIC_RESTART_COUNT": "0", "WORLD_SIZE": "2"}, STATIC, False),
        ({"TORCHELASTIC_RESTART_COUNT": "2", "WORLD_SIZE": "1"}, STATIC, False),
        (AGAIN, STATIC, True),
        (AGAIN, C10D, True),
        (SEVERAL_AGENTS, STATIC, True),
        (SEVERAL_AGENTS, C10D, False),
    ],
)
def test_a_restarted_job_connects_under_names_of_its_attempt(
    variables: dict[str, str],
    launcher: list[str],
    connects: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TORCHELASTIC_RESTART_COUNT", "WORLD_SIZE", "GROUP_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    connected: list[Any] = []
    fake_dist = SimpleNamespace(
        is_initialized=lambda: False,
        init_process_group=lambda backend, **arguments: connected.append((backend, arguments)),
    )
    process = SimpleNamespace(cmdline=lambda: launcher)
    monkeypatch.setattr(restarts, "dist", fake_dist)
    monkeypatch.setattr(restarts, "PrefixStore", lambda prefix, store: prefix)
    monkeypatch.setattr(restarts, "launcher_processes", lambda: [process])
    monkeypatch.setattr(restarts, "rendezvous", lambda url: iter([("store", 1, 2)]))

    connect_attempt("gloo")

    expected = ("gloo", {"store": "attempt_2", "rank": 1, "world_size": 2})
    assert connected == ([expected] if connects else [])
