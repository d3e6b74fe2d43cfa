"""Whether every rank gives DeepSpeed the gradients of the same parameters, in the same order.

DeepSpeed 0.19 fills buckets as gradients arrive, and adds the buckets of all ranks. Ranks with
other orders (compiled code, unused layers) would add unrelated values without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import LaunchError
from ..text import listed
from .tensors import graph_of


def refuse_differing(
    loss: Tensor,
    parameters: Mapping[str, nn.Parameter],
    gather: Callable[[list[set[str]]], list[set[str]]],
) -> None:
    """Raise ``LaunchError`` if backward passes of ranks will reach other parameters. Collective.

    Exchanges of different sizes would end the process without a word about the cause.
    """
    reached = {getattr(node, "variable", None) for node in graph_of(loss)}
    used = {name for name, own in parameters.items() if own in reached}
    of_ranks = gather([used])
    differing = used.union(*of_ranks) - used.intersection(*of_ranks)
    if differing:
        raise LaunchError(
            f"only some ranks use {listed(sorted(differing))}; set find_unused_parameters: "
            "true, with which gradients are kept whole until every rank has its gradients"
        )


def noted(
    reduce: Callable[..., Any],
    parameters: Iterable[nn.Parameter],
    note: Callable[[int], object],
) -> Callable[..., None]:
    """Return the engine's method that takes a gradient, with a note of the parameter's number."""
    numbers = {own: number for number, own in enumerate(parameters, 1)}

    def noting(parameter: nn.Parameter, *others: Any) -> None:
        note(numbers[parameter])
        reduce(parameter, *others)

    return noting
