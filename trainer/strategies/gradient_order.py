"""One order of gradients on all ranks, for engines whose buckets take them as they come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, nn

from ..errors import LaunchError
from ..text import listed
from .tensors import changed_trainable


class GradientOrder:
    """The row in which gradients are reduced: a bucket is added to other ranks', whatever lies at
    which place in it.

    Gradients of one node of autograd's graph come in any order. A compiled layer is one node, and
    what was compiled for the shapes of one rank's rows may end otherwise than the other ranks'.
    torch's DDP has such a row, DeepSpeed none. What waits for its turn is as much as came early,
    which is seldom more than a layer's.

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
        self._first: set[str] = set()  # what the graph of the first micro-batch reached
        self._came: set[str] = set()  # what has come in it
        self._settled = False  # from the second one on, if that graph has shown all that came
        self._loss: Tensor | None = None
        self._early: dict[int, tuple[Any, ...]] = {}
        self._turn = 0
        self._line_up([])

    def _line_up(self, used: Sequence[str]) -> None:
        self._row, self._count = [*dict.fromkeys([*used, *self._parameters])], len(used)
        self._places = {id(self._parameters[name]): place for place, name in enumerate(self._row)}

    def begin(self, loss: Tensor) -> None:
        """Begin a backward pass from ``loss``.

        The ranks compare before the first one and take rank 0's order. Later each is held to it by
        what comes, since an exchange of other sizes ends the process; ``fingerprint`` notices the
        rest. Walking the graph takes some microseconds an operation, and is done again only where
        it does not show all (a reentrant checkpoint).

        Raises:
            LaunchError: ranks, or micro-batches, use different parameters.
        """
        self._turn, self._loss = 0, loss
        if not self._first:
            rows = self._gather([self._reached()])
            if differing := sorted(set().union(*rows) - set(rows[0]).intersection(*rows)):
                raise self._refusal("ranks", differing)
            self._first = {*rows[0]}
            self._line_up(rows[0])
        elif not self._settled and self._came and self._came <= self._first:
            self._settled = True
            self._line_up([name for name in self._row if name in self._came])
        elif not self._settled and (differing := sorted(self._first ^ {*self._reached()})):
            raise self._refusal("micro-batches", differing)

    def _reached(self) -> list[str]:
        """List the parameters that the backward pass leads to, as their gradients come."""
        reached: dict[int, int] = {}  # the last operation that a parameter's gradient waits for
        assert self._loss is not None, "asked after a backward pass"
        seen, waiting = set(), [self._loss.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen:
                seen.add(node)
                for below, _ in node.next_functions:
                    waiting.append(below)
                    key, number = id(getattr(below, "variable", None)), node._sequence_nr()
                    reached[key] = min(number, reached.get(key, number))
        used = {
            name: reached[id(own)] for name, own in self._parameters.items() if id(own) in reached
        }
        return sorted(used, key=used.__getitem__, reverse=True)

    def take(self, *gradient: Any) -> None:
        """Reduce a gradient at its turn; one that the graph did not show (of a reentrant
        checkpoint) when it comes.

        Raises:
            LaunchError: it did not come in the first micro-batch.
        """
        place = self._places[id(gradient[0])]
        self._early[place] = gradient
        if place >= self._count:
            self._hold_to_first(self._row[place])
            self._give(place)
        while self._turn in self._early:
            self._give(self._turn)
            self._turn += 1

    def take_rest(self) -> None:
        """End a backward pass: reduce what waits. A graph with reentrant checkpoints has several
        ends.

        Raises:
            LaunchError: a gradient did not come that did in the first micro-batch.
        """
        if self._turn < self._count:
            self._hold_to_first(self._row[self._turn])
        for place in sorted(self._early):
            self._give(place)
        self._loss = None  # the operations behind it may hold on to memory

    def _hold_to_first(self, name: str) -> None:
        """Refuse a gradient that came or did not; the graph tells of the others."""
        if self._settled:
            raise self._refusal("micro-batches", sorted(self._first ^ {*self._reached()}) or [name])

    def _give(self, place: int) -> None:
        self._came.add(self._row[place])
        self.fingerprint = (self.fingerprint * 31 + place + 1) % (1 << 61)
        self._reduce(*self._early.pop(place))

    def _refusal(self, who: str, names: Sequence[str]) -> LaunchError:
        if frozen := [
            name for name, parameter in self._parameters.items() if not parameter.requires_grad
        ]:
            return LaunchError(changed_trainable(frozen))
        return LaunchError(
            f"only some {who} use {listed(names)}; set find_unused_parameters: true, with which gradients are kept "
            "whole until all ranks have theirs"
        )
