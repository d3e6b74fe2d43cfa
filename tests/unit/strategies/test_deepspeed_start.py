"""What the process gets before DeepSpeed's engine."""

from __future__ import annotations

import logging

import pytest
from plans import plan, request

from trainer.private.deepspeed import quiet
from trainer.strategies import deepspeed_start
from trainer.strategies.deepspeed_start import prepare_process


def test_the_environment_of_a_cpu_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepspeed_start, "without_compiled_op", lambda: None)
    environment: dict[str, str] = {}
    monkeypatch.setattr(deepspeed_start.os, "environ", environment)
    prepare_process(plan(request("zero2")))
    assert environment["ACCELERATE_USE_DEEPSPEED"] == "true"
    assert environment["DS_ACCELERATOR"] == "cpu"


def test_logging_is_quiet_only_meanwhile() -> None:
    log = logging.getLogger("deepspeed_test")
    with quiet():
        assert not log.isEnabledFor(logging.WARNING)
    assert log.isEnabledFor(logging.WARNING)
