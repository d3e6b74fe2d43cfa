"""One order of gradients on all ranks, for engines whose buckets take them as they come."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ..errors import LaunchError
from ..text import listed


class GradientOrder:
    """The row in which gradients are reduced: a bucket is added to other ranks', whatever lies at which place in it.

    Gradients of one node of autograd's graph come in any order. A compiled layer is one node, and what was compiled for
    the shapes of one rank's rows may end otherwise than the other ranks'. torch's DDP has such a row, DeepSpeed none.
    What waits for its turn is as much as came early, which is seldom more than a layer's.

    Args:
        parameters: those that learn, by name.
        reduce: gives one gradient to the engine; what it is called with begins with the parameter.
        gather: makes a list of all ranks' lists. Collective.

    Attributes:
        fingerprint: of the gradients that were reduced so far, in their order.
    """

    def __init__(
        self,
        parameters: dict[str, nn.Parameter],
        reduce: Callable[..., Any],
        gather: Callable[[list[list[str]]], list[list[str]]],
    ) -> None:
        self.fingerprint = 0
        self._parameters, self._reduce, self._gather = parameters, reduce, gather
        self._used: list[str] = []  # the parameters that the first micro-batch reached, as rank 0's gradients come
        self._early: dict[int, tuple[Any, ...]] = {}
        self._turn = 0
        self._line_up()

    def _line_up(self) -> None:
        row = dict.fromkeys([*self._used, *self._parameters])
        self._places = {id(self._parameters[name]): place for place, name in enumerate(row)}

    def begin(self, loss: Tensor) -> None:
        """Begin a backward pass from ``loss``.

        The ranks compare before the first one and take rank 0's order; later each holds its own to that, at some
        microseconds an operation of the graph, since an exchange of other sizes ends the process. ``fingerprint``
        notices the rest.

        Raises:
            LaunchError: ranks, or micro-batches, use different parameters.
        """
        reached: dict[int, int] = {}  # the last operation of the backward pass that a parameter's gradient waits for
        seen, waiting = set(), [loss.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                for below, _ in node.next_functions:
                    waiting.append(below)
                    key, number = id(getattr(below, "variable", None)), node._sequence_nr()
                    reached[key] = min(number, reached.get(key, number))
        used = {name: reached[id(own)] for name, own in self._parameters.items() if id(own) in reached}
        first = not self._used
        rows = self._gather([sorted(used, key=used.__getitem__, reverse=True)]) if first else [self._used, list(used)]
        if differing := sorted(set().union(*rows) - set(used).intersection(*rows)):
            raise LaunchError(
                f"only some {'ranks' if first else 'micro-batches'} use {listed(differing)}; set "
                "find_unused_parameters: true, with which gradients are kept whole until all ranks have theirs"
            )
        if first:
            self._used = rows[0]
            self._line_up()
        self._turn = 0

    def take(self, *gradient: Any) -> None:
        """Reduce a gradient at its turn; one that no graph showed (of a reentrant checkpoint) when it comes."""
        place = self._places[id(gradient[0])]
        self._early[place] = gradient
        if place >= len(self._used):
            self._give(place)
        while self._turn in self._early:
            self._give(self._turn)
            self._turn += 1

    def take_rest(self) -> None:
        """End a backward pass: reduce what waits for a gradient that did not come."""
        for place in sorted(self._early):
            self._give(place)

    def _give(self, place: int) -> None:
        self.fingerprint = (self.fingerprint * 31 + place + 1) % (1 << 61)
        self._reduce(*self._early.pop(place))
