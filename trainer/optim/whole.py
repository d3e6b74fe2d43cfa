"""Optimizers that look at whole matrices, under strategies that give each rank flat parts of them.

Each rank keeps the state of its own part, as for every optimizer. In a step the pieces of a matrix
travel to a rank, its owner, who computes the update of the whole matrix, and sends each rank the
update of its piece. Owners have about the same work. A rank that has most of a matrix owns this
matrix if the balance allows. A round moves some matrices of each owner in a single exchange there
and a single exchange back, so that a rank has few whole matrices at once.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

if TYPE_CHECKING:
    from ..strategies import Strategy

Group = dict[str, Any]  # of ``Optimizer.param_groups``

_ROUND = 1 << 24  # elements that an owner sends in a round, or those of a single larger matrix


class Matrix(NamedTuple):
    """A matrix within a flattened parameter, from the element ``start`` on."""

    name: str
    start: int
    rows: int
    columns: int

    @property
    def size(self) -> int:
        return self.rows * self.columns

    @property
    def cost(self) -> int:
        """The multiplications of the matrix with its transpose."""
        return self.size * min(self.rows, self.columns)

    def cut(self, held: range) -> range:
        """Return the elements within a range of the parameter."""
        return range(max(self.start, held.start), min(self.start + self.size, held.stop))


class Way:
    """The pieces of matrices that a rank sends and receives in an exchange, by the other rank."""

    def __init__(self, rank: int, ranks: Sequence[int]) -> None:
        self._rank = rank
        self.out: list[list[tuple[Matrix, range]]] = [[] for _ in ranks]
        self.into: list[list[tuple[Matrix, range]]] = [[] for _ in ranks]

    def add(self, matrix: Matrix, piece: range, source: int, target: int) -> None:
        """Note that a piece travels, if this rank sends or receives the piece."""
        if source == self._rank:
            self.out[target].append((matrix, piece))
        if target == self._rank:
            self.into[source].append((matrix, piece))

    def exchange(
        self, like: Tensor, read: Callable[[Matrix, range], Tensor]
    ) -> Iterator[tuple[Matrix, range, Tensor]]:
        """Send the pieces that this rank has, and yield those that come. Collective."""
        leaving, coming = (
            [sum(len(piece) for _, piece in own) for own in way] for way in (self.out, self.into)
        )
        sent = torch.cat([like, *(read(*own).to(like) for own in chain(*self.out))])
        received = sent
        if len(leaving) > 1:
            received = like.new_empty(sum(coming))
            dist.all_to_all_single(received, sent, coming, leaving)
        for matrix, piece in chain(*self.into):
            yield matrix, piece, received[: len(piece)]
            received = received[len(piece) :]


class Round(NamedTuple):
    """Some matrices of each owner: the pieces that travel to the owners, and the updates back."""

    there: Way
    back: Way


class Place(NamedTuple):
    """A parameter in a tensor that the optimizer steps.

    Args:
        ranges: the elements of the flattened parameter that each rank has.
        first: the element of the parameter at which the tensor begins, or would begin.
    """

    name: str
    shape: Sequence[int]
    ranges: Sequence[range]
    first: int


class Held(NamedTuple):
    """This rank's part of a parameter in a step, flat."""

    place: Place
    group: Group
    weights: Tensor
    direction: Tensor


class WholeOptimizer(Optimizer):
    """The base of optimizers that compute updates from whole matrices.

    ``direct`` computes element by element, on flat parts. ``update`` sees a whole matrix, on a
    single rank. The first dimension of a parameter are the rows, or in a group with ``stacked:
    True`` the last two dimensions are matrices. Before ``bind`` all parameters are whole.

    Attributes:
        kept: the keys of the state, tensors of the parameter's shape that begin with zeros.
    """

    kept: ClassVar[tuple[str, ...]] = ()
    _rank = 0
    _device: torch.device | None = None  # on which owners compute
    _places: Mapping[Tensor, Sequence[Place]] = {}

    # -- for subclasses ---------------------------------------------------------------------------

    def step_elements(self, group: Group) -> bool:
        """Step a group that needs no matrices. Return whether the group is such a group."""
        return False

    def dtype(self, device: torch.device) -> torch.dtype:
        """Return the dtype in which pieces travel and owners compute."""
        return torch.float32

    def direct(self, group: Group, gradient: Tensor, *kept: Tensor) -> None:
        """Turn a gradient into the direction that travels, in place, and change the state."""

    def update(self, group: Group, matrix: Tensor) -> Tensor:
        """Return the update from the whole direction, which may be changed."""
        raise NotImplementedError

    def rate(self, group: Group, matrix: Matrix) -> float:
        """Return the factor of an update."""
        return float(group["lr"])

    # -- for the trainer --------------------------------------------------------------------------

    def bind(self, strategy: Strategy, groups: Sequence[Mapping[str, Any]]) -> list[str]:
        """Learn which parts ranks have, after ``Strategy.prepare``. Return lines for the banner.

        Args:
            groups: the ``names`` of the parameters of each group.
        """
        self._rank = strategy.accelerator.process_index
        self._device = strategy.accelerator.device
        self._rounds: dict[tuple[str, ...], list[Round]] = {}  # by the names in a call
        places: dict[Any, list[Place]] = defaultdict(list)
        ranks = range(strategy.accelerator.num_processes)
        handle: Any
        for name, shape, _, handle in strategy.named_tensors():
            if not handle.requires_grad:
                continue
            own = strategy.shard(name, handle)
            places[own.state_key].append(
                Place(
                    name,
                    shape or (1,),
                    [strategy.range_of(handle, rank) for rank in ranks],
                    first=own.start - own.state_offset,
                )
            )
        self._places = places
        return []

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Make a step. After ``bind`` collective: call on every rank."""
        held: dict[str, Held] = {}
        for group in self.param_groups:
            if self.step_elements(group):
                continue
            for own in group["params"]:
                if own.grad is None:
                    continue
                state = self.state[own]
                if not state:
                    state |= {key: torch.zeros_like(own) for key in self.kept}
                weights, direction, *kept = (
                    tensor.reshape(-1)
                    for tensor in (own.data, own.grad, *map(state.__getitem__, self.kept))
                )
                self.direct(group, direction, *kept)
                # An engine may step a group, or a part of a group, at a time. The names in these
                # are the same on all ranks, in the same order.
                whole = Place(str(len(held)), own.shape, [range(own.numel())], 0)
                for place in self._places.get(own, [whole]):
                    held[place.name] = Held(place, group, weights, direction)

        names = tuple(held)
        known = self._rounds if self._device else {}
        if names not in known:
            known[names] = self._divide(held)
        for some in known[names]:
            self._make(some, held, self._device or weights.device)

    def _divide(self, held: Mapping[str, Held]) -> list[Round]:
        """Find the owner and the round of each matrix, and the pieces that travel."""
        matrices: list[Matrix] = []
        for name, (place, group, *_) in held.items():
            shape = place.shape[-2:] if group.get("stacked") else place.shape
            rows, columns = shape[0], math.prod(shape[1:])
            starts = range(0, math.prod(place.shape), rows * columns or 1)
            matrices += [Matrix(name, start, rows, columns) for start in starts]
        rounds: dict[int, Round] = {}
        load: dict[int, int] = defaultdict(int)
        sent: dict[int, int] = defaultdict(int)
        total = sum(matrix.cost for matrix in matrices)
        for matrix in sorted(matrices, key=lambda matrix: (-matrix.cost, matrix)):
            pieces = [matrix.cut(own) for own in held[matrix.name].place.ranges]
            ranks = range(len(pieces))
            # A rank that stays below 1.1 of the mean. Of several the rank with most of the matrix,
            # so that fewer pieces travel.
            enough = 1.1 * total / len(pieces) - matrix.cost
            owner = min(
                ranks, key=lambda rank: (max(enough, load[rank]), -len(pieces[rank]), load[rank])
            )
            some = Round(Way(self._rank, ranks), Way(self._rank, ranks))
            there, back = rounds.setdefault(sent[owner] // _ROUND, some)
            load[owner] += matrix.cost
            sent[owner] += sum(map(len, pieces))

            # A single rank sends each piece to the owner, if possible the owner itself.
            senders = {pieces[rank]: rank for rank in sorted(ranks, key=lambda rank: rank <= owner)}
            for piece, rank in senders.items():
                there.add(matrix, piece, rank, owner)
            for rank, piece in enumerate(pieces):
                back.add(matrix, piece, owner, rank)
        return [*rounds.values()]

    def _make(self, some: Round, held: Mapping[str, Held], device: torch.device) -> None:
        """Update the matrices of a round. Collective: call on every rank."""
        like = torch.empty(0, dtype=self.dtype(device), device=device)
        whole = {matrix: like.new_empty(matrix.size) for matrix, _ in some.back.out[self._rank]}

        def read(matrix: Matrix, piece: range) -> Tensor:
            own = held[matrix.name]
            return _cut(own.direction, own.place.first, piece)

        def of_whole(matrix: Matrix, piece: range) -> Tensor:
            return _cut(whole[matrix], matrix.start, piece)

        for matrix, piece, values in some.there.exchange(like, read):
            of_whole(matrix, piece).copy_(values)
        for matrix, direction in whole.items():
            whole[matrix] = self.update(
                held[matrix.name].group, direction.view(-1, matrix.columns)
            ).reshape(-1)
        for matrix, piece, values in some.back.exchange(like, of_whole):
            place, group, weights, _ = held[matrix.name]
            own = _cut(weights, place.first, piece)
            own.mul_(1 - group["lr"] * group.get("weight_decay", 0.0))
            own.add_(values.to(own.device), alpha=-self.rate(group, matrix))


def _cut(flat: Tensor, first: int, piece: range) -> Tensor:
    """Return a piece of a flat tensor that begins at the element ``first`` of the parameter."""
    return flat[piece.start - first :][: len(piece)]
