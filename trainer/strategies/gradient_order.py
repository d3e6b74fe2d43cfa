"""The same order of gradients on all ranks, for engines that take them as they arrive.

Autograd fixes the order of operations, but not the order of the gradients that one operation gives.
A compiled layer is one operation, and code that was compiled for the shapes of one rank's batch may
give its gradients in another order than the other ranks' code. torch's DDP has a fixed order of its
own; DeepSpeed 0.19 has none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ..errors import LaunchError
from ..private.torch import sequence_number
from ..text import listed
from .tensors import changed_trainable


class OrderedReducer:
    """Reduces gradients in one order on every rank.

    DeepSpeed fills its buckets in the order in which gradients arrive, and adds a bucket to the
    other ranks' element by element: two ranks with different orders would add unrelated values.
    So a gradient that arrives early waits for its turn; seldom more than a layer's are waiting.

    The graph of autograd shows which gradients a backward pass will give. Walking it takes some
    microseconds an operation, so it is done for the first micro-batch only, unless a gradient
    arrived that it does not show (a reentrant checkpoint hides its inside).

    Args:
        parameters: the trainable ones, by name.
        reduce: gives one gradient to the engine; its first argument is the parameter.
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
        self._parameters = parameters
        self._reduce_now = reduce
        self._gather = gather
        self._loss: Tensor | None = None

        # Of the first micro-batch: what its graph reaches, and what has arrived since.
        self._first_reached: set[str] = set()
        self._arrived: set[str] = set()
        # Whether the graph shows every gradient, so that it need not be walked again.
        self._graph_is_complete = False

        # The order of this backward pass: ``order[:expected]`` arrive by the graph, the others
        # are hidden from it. Gradients wait under their place in it.
        self._order: list[str] = []
        self._expected = 0
        self._places: dict[int, int] = {}
        self._next_index = 0
        self._waiting: dict[int, tuple[Any, ...]] = {}
        self._set_order([])

    def start_anew(self, parameters: dict[str, nn.Parameter]) -> None:
        """Forget the order: other parameters are trainable from now on. Between two steps."""
        self._parameters = parameters
        self._first_reached = set()
        self._arrived = set()
        self._graph_is_complete = False
        self._set_order([])

    def _set_order(self, expected: Sequence[str]) -> None:
        """Set the order: the parameters that are expected, then all others."""
        self._order = list(dict.fromkeys([*expected, *self._parameters]))
        self._expected = len(expected)
        self._places = {}
        for place, name in enumerate(self._order):
            self._places[id(self._parameters[name])] = place

    def start_backward(self, loss: Tensor) -> None:
        """Begin a backward pass from ``loss``. Collective in the first one: call on every rank.

        Before the first pass the ranks compare which parameters their graphs reach, and take rank
        0's order. Later passes have to reach the same ones. A rank finds that out alone, before an
        exchange of another size ends the process; ``fingerprint`` shows the rest to all ranks.

        Raises:
            LaunchError: ranks, or micro-batches, use different parameters.
        """
        self._next_index = 0
        self._loss = loss

        if not self._first_reached:
            self._agree_on_order()
        elif self._graph_is_complete:
            return
        elif self._arrived and self._arrived <= self._first_reached:
            self._graph_is_complete = True
            self._set_order([name for name in self._order if name in self._arrived])
        else:
            self._compare_with_first()

    def _agree_on_order(self) -> None:
        """Take rank 0's order of the first micro-batch. Collective: call on every rank."""
        orders = self._gather([self._reached()])
        reached = set(orders[0])
        by_all = reached.intersection(*orders)
        by_any = reached.union(*orders)
        if by_any != by_all:
            raise self._refusal("ranks", sorted(by_any - by_all))

        self._first_reached = reached
        self._set_order(orders[0])

    def _compare_with_first(self) -> None:
        """Refuse a micro-batch whose graph reaches other parameters than the first one's."""
        differing = self._first_reached.symmetric_difference(self._reached())
        if differing:
            raise self._refusal("micro-batches", sorted(differing))

    def _reached(self) -> list[str]:
        """List the parameters that the backward pass leads to, in the order of their gradients.

        A gradient is complete when the last operation that contributes to it has run: the one
        that was recorded first.
        """
        assert self._loss is not None, "asked after a backward pass"
        earliest: dict[int, int] = {}  # the number of that operation, by the id of the parameter
        seen = set()
        to_visit: list[Any] = [self._loss.grad_fn]
        while to_visit:
            node = to_visit.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            number = sequence_number(node)
            for below, _ in node.next_functions:
                to_visit.append(below)
                key = id(getattr(below, "variable", None))
                earliest[key] = min(number, earliest.get(key, number))

        numbers = {}
        for name, parameter in self._parameters.items():
            if id(parameter) in earliest:
                numbers[name] = earliest[id(parameter)]
        return sorted(numbers, key=numbers.__getitem__, reverse=True)

    def reduce(self, *gradient: Any) -> None:
        """Reduce a gradient when it is its turn; one that the graph does not show at once.

        Args:
            gradient: the arguments of the engine's own method; the first one is the parameter.

        Raises:
            LaunchError: it did not arrive in the first micro-batch.
        """
        place = self._places[id(gradient[0])]
        self._waiting[place] = gradient
        if place >= self._expected:
            self._refuse_if_complete(self._order[place])
            self._reduce_place(place)

        while self._next_index in self._waiting:
            self._reduce_place(self._next_index)
            self._next_index += 1

    def finish_backward(self) -> None:
        """End a backward pass: reduce what is still waiting.

        It may be called several times in a pass: with reentrant checkpoints there are several ends.

        Raises:
            LaunchError: a gradient is missing that arrived in the first micro-batch.
        """
        if self._next_index < self._expected:
            self._refuse_if_complete(self._order[self._next_index])
        for place in sorted(self._waiting):
            self._reduce_place(place)
        self._loss = None  # its graph may hold memory

    def _refuse_if_complete(self, name: str) -> None:
        """Refuse a gradient that arrived or is missing against what the complete graph showed."""
        if not self._graph_is_complete:
            return
        differing = self._first_reached.symmetric_difference(self._reached())
        raise self._refusal("micro-batches", sorted(differing) or [name])

    def _reduce_place(self, place: int) -> None:
        """Give the gradient that waits at a place to the engine."""
        self._arrived.add(self._order[place])
        self.fingerprint = (self.fingerprint * 31 + place + 1) % (1 << 61)
        gradient = self._waiting.pop(place)
        self._reduce_now(*gradient)

    def _refusal(self, who: str, names: Sequence[str]) -> LaunchError:
        frozen = [name for name, own in self._parameters.items() if not own.requires_grad]
        if frozen:
            return LaunchError(changed_trainable(frozen))
        return LaunchError(
            f"only some {who} use {listed(names)}; set find_unused_parameters: true, with which "
            "gradients are kept whole until all ranks have theirs"
        )
