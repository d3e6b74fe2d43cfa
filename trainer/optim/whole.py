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

from ..strategies.tensors import local

if TYPE_CHECKING:
    from ..strategies import Strategy

Group = dict[str, Any]  # of ``Optimizer.param_groups``

_ROUND = 1 << 24  # elements that an owner sends in a round, or those of a single larger matrix
# How much more than the mean an owner may have to compute, so that fewer pieces travel.
_IMBALANCE = 1.1


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


Piece = tuple[Matrix, range]


class Round:
    """Some matrices of each owner: the pieces that this rank sends and receives, by rank."""

    def __init__(self, world: int) -> None:
        ways: list[list[list[Piece]]] = [[[] for _ in range(world)] for _ in range(4)]
        self.there, self.arriving, self.back, self.returning = ways


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
    """A parameter in a step, and this rank's part: flat weights, gradient and state."""

    place: Place
    group: Group
    tensors: Sequence[Tensor]

    def cut(self, piece: range) -> list[Tensor]:
        """Return a piece of the weights, the gradient and the state."""
        own = slice(piece.start - self.place.first, piece.stop - self.place.first)
        return [tensor[own] for tensor in self.tensors]


class WholeOptimizer(Optimizer):
    """The base of optimizers that compute updates from whole matrices.

    ``accumulate``, ``direction`` and ``apply`` compute element by element, on flat pieces.
    ``update`` sees a whole matrix, on a single rank. Without ``bind`` all parameters are whole.

    Attributes:
        kept: the keys of the state, tensors of the parameter's shape that begin with zeros.
    """

    kept: ClassVar[tuple[str, ...]] = ()
    # Before ``bind`` a step is that of a single process.
    _rank = 0
    _device: torch.device | None = None  # on which owners compute, by default that of a parameter
    _places: Mapping[Tensor, Sequence[Place]] = {}

    # -- for subclasses ---------------------------------------------------------------------------

    def step_elements(self, group: Group, parameters: Sequence[Tensor]) -> bool:
        """Step the parameters of a group that needs no matrices. False for a group that does."""
        return False

    def form(self, group: Group, shape: Sequence[int]) -> tuple[int, int, int]:
        """Return the number of matrices in a parameter of a shape, their rows and their columns."""
        return 1, shape[0], math.prod(shape[1:])

    def dtype(self, device: torch.device) -> torch.dtype:
        """Return the dtype in which pieces travel and owners compute."""
        return torch.float32

    def accumulate(self, group: Group, gradient: Tensor, *kept: Tensor) -> None:
        """Change the state by a gradient."""

    def direction(self, group: Group, gradient: Tensor, *kept: Tensor) -> Tensor:
        """Return the piece that travels to the owner. The state must not change."""
        return gradient

    def update(self, group: Group, matrix: Tensor) -> Tensor:
        """Return the update from the whole direction, which may be changed."""
        raise NotImplementedError

    def apply(self, group: Group, weights: Tensor, update: Tensor, matrix: Matrix) -> None:
        """Change weights in place by a piece of the update of a matrix."""
        weights.add_(update, alpha=-group["lr"])

    # -- for the trainer --------------------------------------------------------------------------

    def bind(self, strategy: Strategy, groups: Sequence[Mapping[str, Any]]) -> list[str]:
        """Learn which parts ranks have, after ``Strategy.prepare``. Return lines for the banner.

        Args:
            groups: the ``names`` of the parameters of each group.
        """
        rank = strategy.accelerator.process_index
        world = range(strategy.accelerator.num_processes)
        shards = {shard.name: shard for shard in strategy.shards()}
        places: dict[Any, list[Place]] = defaultdict(list)
        handles: dict[str, Any] = {
            name: (shape, handle)
            for name, shape, _, handle in strategy.named_tensors()
            if handle.requires_grad
        }
        for group, described in zip(self.param_groups, groups, strict=True):
            for name in filter(handles.__contains__, described["names"]):
                shape, handle = handles[name]
                ranges = [strategy.range_of(handle, other) for other in world]
                if name in shards:
                    own = shards[name]
                    assert own.start == ranges[rank].start, name
                    key, first = own.state_key, own.start - own.state_offset
                else:  # this rank has other parts of the group
                    key, first = group["params"][0], 0
                places[key].append(Place(name, shape, ranges, first))
        self._rank, self._places, self._device = rank, places, strategy.accelerator.device
        self._rounds: dict[tuple[str, ...], list[Round]] = {}  # by the names in a call
        return []

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Make a step. After ``bind`` collective: call on every rank."""
        held: dict[str, Held] = {}
        for group in self.param_groups:
            parameters = [own for own in group["params"] if own.grad is not None]
            if self.step_elements(group, parameters):
                continue
            for own in parameters:
                state = self.state[own]
                for key in self.kept:
                    if key not in state:
                        state[key] = torch.zeros_like(own)
                tensors = own.data, own.grad, *(state[key] for key in self.kept)
                flat = [local(tensor).reshape(-1) for tensor in tensors]
                self.accumulate(group, *flat[1:])
                # An engine may step a group, or a part of a group, at a time. The names in these
                # are the same on all ranks, in the same order.
                whole = Place(str(len(held)), own.shape, [range(own.numel())], 0)
                for place in self._places.get(own, [whole]):
                    held[place.name] = Held(place, group, flat)
        if not held:
            return

        device = self._device or flat[0].device
        like = torch.empty(0, dtype=self.dtype(device), device=device)
        known, names = vars(self).get("_rounds", {}), tuple(held)
        if names not in known:
            known[names] = self._divide(held)
        for some in known[names]:
            self._make(some, held, like)

    def _divide(self, held: Mapping[str, Held]) -> list[Round]:
        """Find the owner and the round of each matrix."""
        matrices = [
            Matrix(name, start, rows, columns)
            for name, (place, group, _) in held.items()
            for number, rows, columns in [self.form(group, place.shape)]
            for start in range(0, number * rows * columns, max(1, rows * columns))
        ]
        total = sum(matrix.cost for matrix in matrices)
        rounds: dict[int, Round] = {}
        load: dict[int, int] = defaultdict(int)
        sent: dict[int, int] = defaultdict(int)
        for matrix in sorted(matrices, key=lambda matrix: (-matrix.cost, matrix)):
            pieces = dict(enumerate(map(matrix.cut, held[matrix.name].place.ranges)))
            enough = _IMBALANCE * total / len(pieces)
            # Ranks with little work so far, of these the rank with most of the matrix.
            *_, owner = min(
                (max(enough, load[rank] + matrix.cost), -len(piece), load[rank], rank)
                for rank, piece in pieces.items()
            )
            some = rounds.setdefault(sent[owner] // _ROUND, Round(len(pieces)))
            load[owner] += matrix.cost
            sent[owner] += sum(map(len, pieces.values()))
            self._add(some, matrix, pieces, owner)
        return [rounds[number] for number in sorted(rounds)]

    def _add(self, some: Round, matrix: Matrix, pieces: Mapping[int, range], owner: int) -> None:
        """Let the pieces of a matrix travel to the owner and back in a round."""
        # Of ranks with the same piece the nearest sends.
        distant = sorted(pieces, key=lambda rank: -abs(rank - owner))
        senders = {pieces[rank]: rank for rank in distant}
        mine = pieces[self._rank]
        some.returning[owner].append((matrix, mine))
        if senders[mine] == self._rank:
            some.there[owner].append((matrix, mine))
        if owner == self._rank:
            for rank, piece in pieces.items():
                some.back[rank].append((matrix, piece))
                if senders[piece] == rank:
                    some.arriving[rank].append((matrix, piece))

    def _make(self, some: Round, held: Mapping[str, Held], like: Tensor) -> None:
        """Update the matrices of a round. Collective: call on every rank."""
        whole = {matrix: like.new_empty(matrix.size) for matrix, _ in some.back[self._rank]}

        def read(matrix: Matrix, piece: range) -> Tensor:
            own = held[matrix.name]
            return self.direction(own.group, *own.cut(piece)[1:])

        def of_whole(matrix: Matrix, piece: range) -> Tensor:
            return whole[matrix][piece.start - matrix.start : piece.stop - matrix.start]

        for matrix, piece, values in _exchange(some.there, some.arriving, like, read):
            of_whole(matrix, piece).copy_(values)
        for matrix, direction in whole.items():
            update = self.update(held[matrix.name].group, direction.view(-1, matrix.columns))
            whole[matrix] = update.reshape(-1)
        for matrix, piece, values in _exchange(some.back, some.returning, like, of_whole):
            own = held[matrix.name]
            weights = own.cut(piece)[0]
            self.apply(own.group, weights, values.to(weights.device), matrix)


def _exchange(
    out: Sequence[Sequence[Piece]],
    into: Sequence[Sequence[Piece]],
    like: Tensor,
    read: Callable[[Matrix, range], Tensor],
) -> Iterator[tuple[Matrix, range, Tensor]]:
    """Send the pieces that this rank has, and yield those that come. Collective."""
    leaving, coming = ([[len(piece) for _, piece in own] for own in side] for side in (out, into))
    sent = torch.cat([like, *(read(*own).to(like) for own in chain(*out))])
    received = sent
    if len(out) > 1:
        received = like.new_empty(sum(map(sum, coming)))
        dist.all_to_all_single(received, sent, [*map(sum, coming)], [*map(sum, leaving)])
    values = torch.split(received, [*chain(*coming)])
    for (matrix, piece), own in zip(chain(*into), values, strict=True):
        yield matrix, piece, own
