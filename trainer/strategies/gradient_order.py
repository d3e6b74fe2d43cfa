"""Whether every rank gives DeepSpeed the gradients of the same parameters, in the same order.

DeepSpeed 0.19 fills buckets as gradients arrive, and adds the buckets of all ranks. Ranks with
other orders (compiled code, unused layers) would add unrelated values without an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..errors import LaunchError
from ..text import listed
from .tensors import graph_of


class GradientOrder:
    """Takes the fingerprint of the gradients that reach the engine, in order of arrival."""

    fingerprint = 0
    _is_first = True

    def __init__(self, parameters: dict[str, nn.Parameter], reduce: Callable[..., Any]) -> None:
        self._parameters = parameters
        self._numbers = {own: number for number, own in enumerate(parameters.values(), 1)}
        self._reduce = reduce

    def start_backward(
        self, loss: Tensor, gather: Callable[[list[set[str]]], list[set[str]]]
    ) -> None:
        """Compare which parameters the first backward pass of each rank will reach. Collective.

        Exchanges of different sizes would end the process without a word about the cause.
        """
        if not self._is_first:
            return
        self._is_first = False

        reached = {getattr(node, "variable", None) for node in graph_of(loss)}
        used = {name for name, own in self._parameters.items() if own in reached}
        of_ranks = gather([used])
        differing = used.union(*of_ranks) - used.intersection(*of_ranks)
        if differing:
            raise LaunchError(
                f"only some ranks use {listed(sorted(differing))}; set find_unused_parameters: "
                "true, with which gradients are kept whole until every rank has its gradients"
            )

    def reduce(self, *gradient: Any) -> None:
        """Give a gradient to the engine, as the arguments of the engine's own method."""
        self.fingerprint = (self.fingerprint * 31 + self._numbers[gradient[0]]) % (1 << 61)
        self._reduce(*gradient)
