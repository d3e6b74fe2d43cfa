"""Buffers of steps that are left out."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from fake_run import fake_run, step_info
from torch import nn

from trainer.callbacks.skipped_buffers import SkippedBuffers
from trainer.strategies.base import StepResult


@pytest.mark.parametrize(
    ("norm", "skipped", "stays"),
    [
        (1.0, False, False),
        (float("nan"), False, True),
        (float("inf"), False, True),
        (1.0, True, True),
    ],
)
def test_statistics_follow_a_batch_only_where_its_step_was_made(
    norm: float, skipped: bool, stays: bool
) -> None:
    model = nn.BatchNorm1d(2)
    run, window, hook = fake_run(model=model), object(), SkippedBuffers()
    hook.on_start(run)
    typed: Any = window
    hook.on_window(run, typed)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    model(torch.tensor([[1.0, 2.0], [3.0, 8.0]]))

    update = StepResult(grad_norm=torch.tensor(norm), skipped=skipped)
    hook.on_step(run, step_info(update=update))
    for name, buffer in model.named_buffers():
        assert torch.equal(buffer, before[name]) == stays
