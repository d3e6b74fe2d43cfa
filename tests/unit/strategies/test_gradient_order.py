"""Ranks that give DeepSpeed other gradients, or in another order, are noticed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainer.errors import LaunchError
from trainer.strategies.gradient_order import GradientOrder

Gather = Callable[[list[set[str]]], list[set[str]]]


def watched(arriving: str, gather: Gather = list) -> tuple[GradientOrder, list[str]]:
    """Reduce the gradients of a, b and c in an order, of a loss that uses a and b."""
    own = {name: nn.Parameter(torch.ones(())) for name in "abc"}
    names = {id(parameter): name for name, parameter in own.items()}
    reduced: list[str] = []
    order = GradientOrder(own, lambda parameter, *_: reduced.append(names[id(parameter)]))
    order.start_backward((own["a"] * own["b"]).sin() * own["a"], gather)
    for name in arriving:
        order.reduce(own[name], 7)
    return order, reduced


def test_gradients_pass_as_they_come_and_the_fingerprint_has_their_order() -> None:
    (first, reduced), (second, _), (other, _), (less, _) = map(watched, ("ba", "ba", "ab", "b"))
    assert reduced == ["b", "a"]
    assert first.fingerprint == second.fingerprint
    assert len({first.fingerprint, other.fingerprint, less.fingerprint, 0}) == 4


def test_ranks_that_use_different_parameters_are_refused_before_the_first_exchange() -> None:
    asked: list[set[str]] = []

    def gather(mine: list[set[str]]) -> list[set[str]]:
        asked.extend(mine)
        return [{"a", "b"}, *mine]

    order, _ = watched("ba", gather)
    order.start_backward(torch.ones(()), gather)
    assert asked == [{"a", "b"}], "the ranks are asked once"
    said = "only some ranks use b, c; set find_unused_parameters: true"
    with pytest.raises(LaunchError, match=said):
        watched("", lambda mine: [{"a", "c"}, *mine])
