"""Gradients that arrive in any order are reduced in one order, on every rank."""

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


def reducer_of(
    own: dict[str, nn.Parameter], gather: Gather = list
) -> tuple[OrderedReducer, list[str]]:
    """Build the reducer of ``own`` and the list of what it has reduced, by name."""
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
    reducer, reduced = reducer_of(own)
    arrived: list[str] = []
    for name, parameter in own.items():
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: arrived.append(name))
    loss = chain(own) + own["c"]  # c is used once more; its gradient waits for its first use
    reducer.start_backward(loss)
    loss.backward()
    for name in own:
        reducer.reduce(own[name], 7)
    assert reduced == arrived == ["c", "b", "a"]


@pytest.mark.parametrize("arriving", ["cba", "abc", "bac", "acb"])
def test_a_gradient_that_arrives_early_waits_for_its_turn(arriving: str) -> None:
    own = parameters("a", "b", "c")
    (reducer, reduced), (other, _) = reducer_of(own), reducer_of(own)
    for _ in range(2):
        reducer.start_backward(chain(own))
        for name in arriving:
            reducer.reduce(own[name])
        other.start_backward(chain(own))
        for name in "cba":
            other.reduce(own[name])
    assert reduced == list("cbacba") and reducer.fingerprint == other.fingerprint != 0


def test_all_ranks_take_the_order_of_rank_0() -> None:
    own = parameters("a", "b", "c")
    reducer, reduced = reducer_of(own, lambda mine: [["b", "a", "c"], *mine])
    reducer.start_backward(chain(own))
    for name in "cba":
        reducer.reduce(own[name])
    assert reduced == ["b", "a", "c"]


def test_a_parameter_that_never_gets_a_gradient_delays_no_other() -> None:
    """Its operation gives none back, though the graph leads there."""
    own = parameters("a", "b", "c")
    reducer, reduced = reducer_of(own)
    for _ in range(3):
        reducer.start_backward(chain(own))
        for name in "ba":
            reducer.reduce(own[name])
        reducer.finish_backward()
    assert reduced == list("bababa")


def test_a_gradient_that_is_missing_later_is_refused_before_others_are_reduced() -> None:
    own = parameters("a", "b", "c", "d")
    reducer, reduced = reducer_of(own)
    reducer.start_backward(chain(own))
    for name in "dcba":
        reducer.reduce(own[name])
    reducer.finish_backward()
    reducer.start_backward((own["a"] * own["d"]).sin())
    for name in "da":
        reducer.reduce(own[name])
    with pytest.raises(
        LaunchError, match="only some micro-batches use b, c; set find_unused_parameters: true"
    ):
        reducer.finish_backward()
    assert reduced == list("dcbad")


def test_a_gradient_that_is_new_in_a_later_micro_batch_is_refused() -> None:
    own = parameters("a", "b", "c")
    reducer, reduced = reducer_of(own)
    reducer.start_backward((own["a"] * own["c"]).sin())
    for name in "ca":
        reducer.reduce(own[name])
    reducer.finish_backward()
    reducer.start_backward(chain(own))
    reducer.reduce(own["c"])
    with pytest.raises(
        LaunchError, match="only some micro-batches use b; set find_unused_parameters: true"
    ):
        reducer.reduce(own["b"])
    assert "b" not in reduced


def test_the_graph_is_walked_in_the_first_micro_batch_only() -> None:
    """It takes some microseconds an operation."""
    own = parameters("a", "b", "c")
    reducer, _ = reducer_of(own)
    reducer.start_backward(chain(own))
    for name in "cba":
        reducer.reduce(own[name])
    reducer.start_backward(torch.ones(()))  # has no graph that could be walked


def test_a_graph_that_hides_parameters_is_walked_in_each_micro_batch() -> None:
    own = parameters("a", "inside", "c")
    reducer, reduced = reducer_of(own)
    for _ in range(2):
        reducer.start_backward((own["a"].sin() * own["c"]).sin())
        for name in ("a", "inside", "c"):
            reducer.reduce(own[name])
        reducer.finish_backward()
    assert reduced == ["inside", "c", "a"] * 2
    with pytest.raises(LaunchError, match="only some micro-batches use a, c, inside; set"):
        reducer.start_backward(own["inside"].sin())


def test_a_missing_gradient_delays_no_other_and_changes_the_fingerprint() -> None:
    own = parameters("a", "b", "c")
    (reducer, reduced), (other, _) = reducer_of(own), reducer_of(own)
    reducer.start_backward(chain(own))
    for name in "ba":
        reducer.reduce(own[name])
    assert reduced == []
    reducer.finish_backward()
    assert reduced == ["b", "a"]
    other.start_backward(chain(own))
    for name in "cba":
        other.reduce(own[name])
    other.finish_backward()
    assert reducer.fingerprint != other.fingerprint


def test_ranks_that_use_different_parameters_are_refused() -> None:
    own = parameters("a", "b", "c")
    reducer, _ = reducer_of(own, lambda mine: [["a", "b"], *mine])
    with pytest.raises(
        LaunchError, match="only some ranks use c; set find_unused_parameters: true"
    ):
        reducer.start_backward(chain(own))


def test_other_parameters_may_be_trained_after_a_new_start() -> None:
    own = parameters("a", "b", "c")
    reducer, reduced = reducer_of(own)
    own["a"].requires_grad_(False)
    for expected in (["c", "b"], ["c", "b", "a"]):
        reducer.start_anew({name: p for name, p in own.items() if p.requires_grad})
        for _ in range(2):
            reduced.clear()
            reducer.start_backward(chain(own))
            for name in reversed(expected):
                reducer.reduce(own[name])
            reducer.finish_backward()
            assert reduced == expected
        own["a"].requires_grad_(True)
