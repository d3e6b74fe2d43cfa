"""Gradients that come in any order are reduced in one, on every rank."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainer.errors import LaunchError
from trainer.strategies.gradient_order import OrderedReducer

Gather = Callable[[list[list[str]]], list[list[str]]]


def parameters(*names: str) -> dict[str, nn.Parameter]:
    return {name: nn.Parameter(torch.ones(())) for name in names}


def order(own: dict[str, nn.Parameter], gather: Gather = list) -> tuple[OrderedReducer, list[str]]:
    """Build the order of ``own`` and the list of what was reduced."""
    reduced: list[str] = []
    names = {id(parameter): name for name, parameter in own.items()}
    return OrderedReducer(
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
    row.start_backward(loss)
    loss.backward()
    for name in own:
        row.reduce(own[name], 7)
    assert reduced == came == ["c", "b", "a"]


@pytest.mark.parametrize("came", ["cba", "abc", "bac", "acb"])
def test_what_comes_early_waits(came: str) -> None:
    own = parameters("a", "b", "c")
    (row, reduced), (other, _) = order(own), order(own)
    for _ in range(2):
        row.start_backward(chain(own))
        for name in came:
            row.reduce(own[name])
        other.start_backward(chain(own))
        for name in "cba":
            other.reduce(own[name])
    assert reduced == list("cbacba") and row.fingerprint == other.fingerprint != 0


def test_all_ranks_take_the_order_of_rank_0() -> None:
    own = parameters("a", "b", "c")
    row, reduced = order(own, lambda mine: [["b", "a", "c"], *mine])
    row.start_backward(chain(own))
    for name in "cba":
        row.reduce(own[name])
    assert reduced == ["b", "a", "c"]


def test_a_gradient_that_never_comes_holds_nobody_up() -> None:
    """Its operation gives none back, though the graph leads there."""
    own = parameters("a", "b", "c")
    row, reduced = order(own)
    for _ in range(3):
        row.start_backward(chain(own))
        for name in "ba":
            row.reduce(own[name])
        row.finish_backward()
    assert reduced == list("bababa")


def test_a_gradient_that_came_and_comes_no_more_is_refused_before_others_are_reduced() -> None:
    own = parameters("a", "b", "c", "d")
    row, reduced = order(own)
    row.start_backward(chain(own))
    for name in "dcba":
        row.reduce(own[name])
    row.finish_backward()
    row.start_backward((own["a"] * own["d"]).sin())
    for name in "da":
        row.reduce(own[name])
    with pytest.raises(
        LaunchError, match="only some micro-batches use b, c; set find_unused_parameters: true"
    ):
        row.finish_backward()
    assert reduced == list("dcbad")


def test_a_gradient_that_came_in_no_earlier_micro_batch_is_refused() -> None:
    own = parameters("a", "b", "c")
    row, reduced = order(own)
    row.start_backward((own["a"] * own["c"]).sin())
    for name in "ca":
        row.reduce(own[name])
    row.finish_backward()
    row.start_backward(chain(own))
    row.reduce(own["c"])
    with pytest.raises(
        LaunchError, match="only some micro-batches use b; set find_unused_parameters: true"
    ):
        row.reduce(own["b"])
    assert "b" not in reduced


def test_the_graph_is_walked_once() -> None:
    """It takes some microseconds an operation."""
    own = parameters("a", "b", "c")
    row, _ = order(own)
    row.start_backward(chain(own))
    for name in "cba":
        row.reduce(own[name])
    row.start_backward(torch.ones(()))  # has no graph that could be walked


def test_a_graph_that_does_not_show_all_is_walked_each_time() -> None:
    own = parameters("a", "inside", "c")
    row, reduced = order(own)
    for _ in range(2):
        row.start_backward((own["a"].sin() * own["c"]).sin())
        for name in ("a", "inside", "c"):
            row.reduce(own[name])
        row.finish_backward()
    assert reduced == ["inside", "c", "a"] * 2
    with pytest.raises(LaunchError, match="only some micro-batches use a, c, inside; set"):
        row.start_backward(own["inside"].sin())


def test_a_gradient_that_does_not_come_holds_nobody_up_and_shows() -> None:
    own = parameters("a", "b", "c")
    (row, reduced), (other, _) = order(own), order(own)
    row.start_backward(chain(own))
    for name in "ba":
        row.reduce(own[name])
    assert reduced == []
    row.finish_backward()
    assert reduced == ["b", "a"]
    other.start_backward(chain(own))
    for name in "cba":
        other.reduce(own[name])
    other.finish_backward()
    assert row.fingerprint != other.fingerprint


def test_ranks_that_use_other_parameters_are_refused() -> None:
    own = parameters("a", "b", "c")
    row, _ = order(own, lambda mine: [["a", "b"], *mine])
    with pytest.raises(
        LaunchError, match="only some ranks use c; set find_unused_parameters: true"
    ):
        row.start_backward(chain(own))
