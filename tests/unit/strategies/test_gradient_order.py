"""Ranks that give DeepSpeed other gradients, or in another order, are noticed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from trainer.errors import LaunchError
from trainer.strategies.base import Strategy
from trainer.strategies.gradient_order import noted, refuse_differing


def fingerprint(arriving: str) -> int:
    """Return the fingerprint of gradients of a, b and c that arrive in an order."""
    own = {name: nn.Parameter(torch.ones(())) for name in "abc"}
    reduced: list[Any] = []
    strategy: Any = SimpleNamespace(fingerprint=0)
    reduce = noted(
        lambda *gradient: reduced.append(gradient),
        own.values(),
        lambda number: Strategy.note_order(strategy, number),
    )
    for name in arriving:
        reduce(own[name], 7)
    assert reduced == [(own[name], 7) for name in arriving]
    return strategy.fingerprint  # type: ignore[no-any-return]


def test_gradients_pass_as_they_come_and_the_fingerprint_has_their_order() -> None:
    first, second, other, less = map(fingerprint, ("ba", "ba", "ab", "b"))
    assert first == second
    assert len({first, other, less, 0}) == 4


def test_ranks_that_use_different_parameters_are_refused_before_the_first_exchange() -> None:
    own = {name: nn.Parameter(torch.ones(())) for name in "abc"}
    loss = (own["a"] * own["b"]).sin() * own["a"]
    refuse_differing(loss, own, lambda mine: [{"a", "b"}, *mine])
    said = "only some ranks use b, c; set find_unused_parameters: true"
    with pytest.raises(LaunchError, match=said):
        refuse_differing(loss, own, lambda mine: [{"a", "c"}, *mine])
