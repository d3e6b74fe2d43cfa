"""Gradients that come in any order are reduced in one, on every rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainer.errors import LaunchError
from trainer.strategies.gradient_order import GradientOrder

Gather = Callable[[list[list[str]]], list[list[str]]]


def parameters(*names: str) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.ones(())) for name in names}


def order(own: dict[str, nn.Parameter], gather: Gather = list) -> tuple[GradientOrder, list[str]]:
    """Build the order of ``own`` and the list of what was reduced."""
    reduced: list[str] = []
    names = {id(parameter): name for name, parameter in own.items()}
    return GradientOrder(
        own, lambda parameter, *_: reduced.append(names[id(parameter)]), gather
    ), reduced


def chain(own: dict[str, nn.Parameter]) -> torch.Tensor:
    """Use each parameter in turn, so that their gradients come from the last to the first."""
    value = torch.ones(())
    for parameter in own.values():
        value = (value * parameter).sin()
    return value


def test_the_order_is_that_of_the_backward_pass() -> None:
    own = parameters("a", "b", "c")
    row, reduced = order(own)
    came: list[str] = []
    for name, parameter in own.items():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: came.append(name))
    loss = chain(own) + own["c"]  # c is used once more; its gradient waits for its first use
    row.begin(loss)
    loss.backward()
    for name in own:
        row.take(own[name], 7)
    assert reduced == came == ["c", "b", "a"]


@pytest.mark.parametrize("came", ["cba", "abc", "bac", "acb"])
def test_what_comes_early_waits(came: str) -> None:
    own = parameters("a", "b", "c")
    (row, reduced), (other, _) = order(own), order(own)
    for _ in range(2):
        row.begin(chain(own))
        for name in came:
            row.take(own[name])
        other.begin(chain(own))
        for name in "cba":
            other.take(own[name])
    assert reduced == list("cbacba") and row.fingerprint == other.fingerprint != 0


def test_all_ranks_take_the_order_of_rank_0() -> None:
    own = parameters("a", "b", "c")
    row, reduced = order(own, lambda mine: [["b", "a", "c"], *mine])
    row.begin(chain(own))
    for name in "cba":
        row.take(own[name])
    assert reduced == ["b", "a", "c"]


def test_a_gradient_that_never_comes_holds_nobody_up() -> None:
    """Its operation gives none back, though the graph leads there."""
    own = parameters("a", "b", "c")
    row, reduced = order(own)
    for _ in range(3):
        row.begin(chain(own))
        for name in "ba":
            row.take(own[name])
        row.take_rest()
    assert reduced == list("bababa")


def test_a_gradient_that_came_and_comes_no_more_is_refused_before_others_are_reduced() -> None:
    own = parameters("a", "b", "c", "d")
    row, reduced = order(own)
    row.begin(chain(own))
    for name in "dcba":
        row.take(own[name])
    row.take_rest()
    row.begin((own["a"] * own["d"]).sin())
    for name in "da":
        row.take(own[name])
    with pytest.raises(
        LaunchError, match="only some micro-batches use b, c; set find_unused_parameters: true"
    ):
        row.take_rest()
    assert reduced == list("dcbad")


def test_a_gradient_that_came_in_no_earlier_micro_batch_is_refused() -> None:
    own = parameters("a", "b", "c")
    row, reduced = order(own)
    row.begin((own["a"] * own["c"]).sin())
    for name in "ca":
        row.take(own[name])
    row.take_rest()
    row.begin(chain(own))
    row.take(own["c"])
    with pytest.raises(
        LaunchError, match="only some micro-batches use b; set find_unused_parameters: true"
    ):
        row.take(own["b"])
    assert "b" not in reduced


def test_the_graph_is_walked_once() -> None:
    """It takes some microseconds an operation."""
    own = parameters("a", "b", "c")
    row, _ = order(own)
    row.begin(chain(own))
    for name in "cba":
        row.take(own[name])
    row.begin(torch.ones(()))  # has no graph that could be walked


def test_a_graph_that_does_not_show_all_is_walked_each_time() -> None:
    own = parameters("a", "inside", "c")
    row, reduced = order(own)
    for _ in range(2):
        row.begin((own["a"].sin() * own["c"]).sin())
        for name in ("a", "inside", "c"):
            row.take(own[name])
        row.take_rest()
    assert reduced == ["inside", "c", "a"] * 2
    with pytest.raises(LaunchError, match="only some micro-batches use a, c, inside; set"):
        row.begin(own["inside"].sin())


def test_a_gradient_that_does_not_come_holds_nobody_up_and_shows() -> None:
    own = parameters("a", "b", "c")
    (row, reduced), (other, _) = order(own), order(own)
    row.begin(chain(own))
    for name in "ba":
        row.take(own[name])
    assert reduced == []
    row.take_rest()
    assert reduced == ["b", "a"]
    other.begin(chain(own))
    for name in "cba":
        other.take(own[name])
    other.take_rest()
    assert row.fingerprint != other.fingerprint


def test_ranks_that_use_other_parameters_are_refused() -> None:
    own = parameters("a", "b", "c")
    row, _ = order(own, lambda mine: [["a", "b"], *mine])
    with pytest.raises(
        LaunchError, match="only some ranks use c; set find_unused_parameters: true"
    ):
        row.begin(chain(own))
