"""Counting what autograd saves."""

from __future__ import annotations

import torch

from trainer.commands.planner.activations import blocks_of, probe


def test_the_probe_counts_each_storage_once_and_no_parameters() -> None:
    linear = torch.nn.Linear(10, 20, bias=False)
    given = torch.ones(3, 10, requires_grad=True)
    counted = probe(linear, lambda: linear(given).exp().sum())
    # The input (3 x 10) and exp's result (3 x 20), which is the largest and counts again for its
    # gradient.
    assert counted.saved == counted.recomputed == 4 * (30 + 60 + 60)
    assert blocks_of(linear) == []
