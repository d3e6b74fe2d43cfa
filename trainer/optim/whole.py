"""Optimizers that look at whole matrices, under strategies that give each rank flat parts of them.

Each rank keeps the state of its own part, as for every optimizer. In a step the pieces of a matrix
travel to a rank, its owner, who computes the update of the whole matrix, and sends each rank the
update of its piece. Owners have about the same work. A rank that has most of a matrix owns this
matrix if the balance allows. A round moves some matrices of each owner in a single exchange there
and a single exchange back, so that a rank has few whole matrices at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from ..strategies.base import Range
from ..strategies.tensors import local

if TYPE_CHECKING:
    from ..strategies import Strategy

_ROUND = 1 << 24  # elements of an owner's matrices in a round. A larger matrix has its own round.
# How much more than the mean an owner may have to compute, so that fewer pieces travel.
_IMBALANCE = 1.1


class Matrix(NamedTuple):
    """A matrix in a flattened parameter, from the element ``start`` on."""

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

    def cut(self, held: Range) -> Piece:
        """Return the piece within a range of the parameter."""
        return Piece(self, max(self.start, held.start), min(self.start + self.size, held.stop))


class Piece(NamedTuple):
    """Elements of a matrix, counted in the flattened parameter."""

    matrix: Matrix
    start: int
    stop: int

    @property
    def size(self) -> int:
        return max(0, self.stop - self.start)


class Held(NamedTuple):
    """This rank's part of a parameter: flat tensors, in which the parameter begins at ``first``."""

    group: dict[str, Any]
    tensors: Sequence[Tensor]
    first: int

    def cut(self, piece: Piece) -> list[Tensor]:
        own = slice(self.first + piece.start, self.first + piece.stop)
        return [tensor[own] for tensor in self.tensors]


class Way:
    """Pieces on their way between ranks: those that this rank keeps, sends and receives."""

    def __init__(self, parts: Parts) -> None:
        self._rank, self._device = parts.rank, parts.device
        self._kept: list[Piece] = []
        self._out: list[list[Piece]] = [[] for _ in range(parts.world)]
        self._into: list[list[Piece]] = [[] for _ in range(parts.world)]
        self._is_needed = False  # by any rank

    def add(self, sender: int, receiver: int, piece: Piece) -> None:
        if sender == receiver:
            if sender == self._rank:
                self._kept.append(piece)
            return
        self._is_needed = True
        if sender == self._rank:
            self._out[receiver].append(piece)
        if receiver == self._rank:
            self._into[sender].append(piece)

    def move(
        self,
        dtype: torch.dtype,
        read: Callable[[Piece], Tensor],
        write: Callable[[Piece, Tensor], None],
    ) -> None:
        """Read the pieces that this rank has, and write those that come. Collective."""
        for piece in self._kept:
            write(piece, read(piece))
        if not self._is_needed:
            return

        sent, received = (
            torch.empty(sum(_sizes(pieces)), dtype=dtype, device=self._device)
            for pieces in (self._out, self._into)
        )
        for piece, values in _views(sent, self._out):
            values.copy_(read(piece))
        dist.all_to_all_single(received, sent, _sizes(self._into), _sizes(self._out))
        for piece, values in _views(received, self._into):
            write(piece, values)


def _sizes(pieces: Sequence[Sequence[Piece]]) -> list[int]:
    """Return the elements for each rank."""
    return [sum(piece.size for piece in own) for own in pieces]


def _views(flat: Tensor, pieces: Sequence[Sequence[Piece]]) -> Iterator[tuple[Piece, Tensor]]:
    """Yield each piece with its place in the tensor that travels."""
    start = 0
    for own in pieces:
        for piece in own:
            yield piece, flat[start : start + piece.size]
            start += piece.size


class Round:
    """Some matrices of each owner, of which this rank has ``owned``."""

    def __init__(self, by_owner: Sequence[Sequence[Matrix]], parts: Parts) -> None:
        self.owned = by_owner[parts.rank]
        self.there, self.back = Way(parts), Way(parts)
        for owner, matrices in enumerate(by_owner):
            for matrix in matrices:
                ranges = parts.ranges[matrix.name]
                for rank, held in enumerate(ranges):
                    piece = matrix.cut(held)
                    if not piece.size:
                        continue
                    if held.copy == ranges[owner].copy:
                        self.there.add(rank, owner, piece)
                    self.back.add(owner, rank, piece)


class Parts:
    """The parts of the parameters that each rank has.

    Args:
        device: on which owners compute.

    Attributes:
        shapes: of the parameters, by name.
        ranges: by name, then by rank.
        places: by the tensor that the optimizer steps: the names in the tensor, and for each the
            element of the tensor at which the parameter would begin.
    """

    def __init__(self, device: torch.device, rank: int = 0, world: int = 1) -> None:
        self.device, self.rank, self.world = device, rank, world
        self.shapes: dict[str, Sequence[int]] = {}
        self.ranges: dict[str, list[Range]] = {}
        self.places: dict[Tensor, list[tuple[str, int]]] = {}
        self._rounds: dict[tuple[Matrix, ...], list[Round]] = {}

    def add(self, name: str, shape: Sequence[int], ranges: list[Range], key: Tensor, at: int) -> None:
        """Add a parameter whose state this rank keeps under ``key``, from the element ``at`` on."""
        self.shapes[name] = shape
        self.ranges[name] = ranges
        self.places.setdefault(key, []).append((name, at - ranges[self.rank].start))

    def rounds(self, matrices: Sequence[Matrix]) -> list[Round]:
        """Return the rounds in which all ranks put these matrices together."""
        key = tuple(matrices)
        if key not in self._rounds:
            by_owner = map(self._cut, self._divide(matrices))
            self._rounds[key] = [Round(own, self) for own in zip_longest(*by_owner, fillvalue=[])]
        return self._rounds[key]

    def _divide(self, matrices: Sequence[Matrix]) -> list[list[Matrix]]:
        """Return the matrices of each owner."""
        ranks = range(self.world)
        load = [0] * self.world
        owned: list[list[Matrix]] = [[] for _ in ranks]
        enough = _IMBALANCE * sum(matrix.cost for matrix in matrices) / self.world
        for matrix in sorted(matrices, key=lambda matrix: (-matrix.cost, matrix)):
            sizes = [matrix.cut(held).size for held in self.ranges[matrix.name]]
            owner = max(ranks, key=lambda rank: (sizes[rank], -load[rank]))  # noqa: B023
            if load[owner] + matrix.cost > enough:
                owner = min(ranks, key=load.__getitem__)
            load[owner] += matrix.cost
            owned[owner].append(matrix)
        return owned

    def _cut(self, matrices: Sequence[Matrix]) -> list[list[Matrix]]:
        """Cut the matrices of an owner into rounds."""
        rounds: list[list[Matrix]] = []
        room = 0
        for matrix in matrices:
            # An owner sends a matrix to each copy of the model.
            size = matrix.size * len({held.copy for held in self.ranges[matrix.name]})
            if size > room:
                rounds.append([])
                room = _ROUND
            rounds[-1].append(matrix)
            room -= size
        return rounds


class WholeOptimizer(Optimizer):
    """The base of optimizers that compute updates from whole matrices.

    ``accumulate``, ``direction`` and ``apply`` see flat pieces, element by element. ``update`` sees
    a whole matrix on a single rank. Without ``bind`` the parameters are whole.

    Attributes:
        kept: the keys of the state, tensors of the parameter's shape that begin with zeros.
    """

    kept: ClassVar[tuple[str, ...]] = ()
    _parts: Parts | None = None

    # -- for subclasses ---------------------------------------------------------------------------

    def is_whole(self, group: dict[str, Any]) -> bool:
        """Return whether a group is stepped by matrices, and not by ``step_elements``."""
        return True

    def step_elements(self, group: dict[str, Any], parameters: Sequence[Tensor]) -> None:
        """Step parameters of a group for which ``is_whole`` says no, element by element."""

    def form(self, group: dict[str, Any], shape: Sequence[int]) -> tuple[int, int, int]:
        """Return the number of matrices in a parameter of a shape, their rows and their columns."""
        return 1, shape[0], math.prod(shape[1:])

    def dtype(self, device: torch.device) -> torch.dtype:
        """Return the dtype in which pieces travel and owners compute."""
        return torch.float32

    def accumulate(self, group: dict[str, Any], gradient: Tensor, *kept: Tensor) -> None:
        """Change the state by a gradient."""

    def direction(self, group: dict[str, Any], gradient: Tensor, *kept: Tensor) -> Tensor:
        """Return the piece from which, with the others, the owner computes the update."""
        return gradient

    def update(self, group: dict[str, Any], matrix: Tensor) -> Tensor:
        """Return the update from the whole direction, which may be changed."""
        raise NotImplementedError

    def apply(
        self, group: dict[str, Any], weights: Tensor, update: Tensor, matrix: Matrix
    ) -> None:
        """Change weights in place by a piece of the update of a matrix."""
        weights.mul_(1 - group["lr"] * group.get("weight_decay", 0.0))
        weights.add_(update, alpha=-group["lr"])

    # -- for the trainer --------------------------------------------------------------------------

    def bind(self, strategy: Strategy, names: Sequence[Sequence[str]]) -> list[str]:
        """Learn which parts ranks have, after ``Strategy.prepare``. Return lines for the banner.

        Args:
            names: of the parameters of each group.
        """
        accelerator = strategy.accelerator
        world = accelerator.num_processes
        parts = Parts(accelerator.device, accelerator.process_index, world)
        shards = {shard.name: shard for shard in strategy.shards()}
        handles = {name: (shape, handle) for name, shape, _, handle in strategy.named_tensors()}
        for group, own in zip(self.param_groups, names, strict=True):
            for name in own:
                shape, handle = handles[name]
                if not handle.requires_grad:
                    continue
                ranges = [strategy.range_of(handle, rank) for rank in range(world)]
                shard = shards.get(name)
                if shard is None:  # others have the parameter, and this rank a part of its group
                    parts.add(name, shape, ranges, group["params"][0], 0)
                    continue
                mine = ranges[parts.rank]
                assert (shard.start, shard.tensor.numel()) == (mine.start, mine.stop - mine.start)
                assert shard.state_key is not None
                parts.add(name, shape, ranges, shard.state_key, shard.state_offset)
        self._parts = parts
        return []

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Make a step. After ``bind`` collective: call on every rank."""
        parts = self._parts or self._alone()
        held: dict[str, Held] = {}
        matrices: list[Matrix] = []
        for group in self.param_groups:
            own = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not self.is_whole(group):
                self.step_elements(group, own)
                continue
            for parameter in own:
                state = self.state[parameter]
                for key in self.kept:
                    if key not in state:
                        state[key] = torch.zeros_like(parameter)
                kept = [state[key] for key in self.kept]
                flat = [local(t).reshape(-1) for t in (parameter.data, parameter.grad, *kept)]
                self.accumulate(group, *flat[1:])
                # An engine steps a group, or a part of a group, at a time. All ranks have the names
                # in the tensors of the call in the same order.
                for name, first in parts.places[parameter]:
                    held[name] = Held(group, flat, first)
                    matrices += self._matrices(group, name, parts.shapes[name])

        for some in parts.rounds(matrices):
            self._make(some, held, self.dtype(parts.device), parts.device)

    def _make(
        self,
        some: Round,
        held: Mapping[str, Held],
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Update the matrices of a round. Collective: call on every rank."""
        whole = {
            matrix: torch.empty(matrix.size, dtype=dtype, device=device) for matrix in some.owned
        }

        def read(piece: Piece) -> Tensor:
            own = held[piece.matrix.name]
            return self.direction(own.group, *own.cut(piece)[1:])

        def of_whole(piece: Piece) -> Tensor:
            first = piece.matrix.start
            return whole[piece.matrix][piece.start - first : piece.stop - first]

        def write(piece: Piece, update: Tensor) -> None:
            own = held[piece.matrix.name]
            weights = own.cut(piece)[0]
            self.apply(own.group, weights, update.to(weights.device), piece.matrix)

        some.there.move(dtype, read, lambda piece, values: of_whole(piece).copy_(values))
        for matrix in some.owned:
            direction = whole.pop(matrix).view(matrix.rows, matrix.columns)
            update = self.update(held[matrix.name].group, direction)
            whole[matrix] = update.reshape(-1)
        some.back.move(dtype, of_whole, write)

    def _matrices(
        self, group: dict[str, Any], name: str, shape: Sequence[int]
    ) -> Iterator[Matrix]:
        """Yield the matrices of a parameter."""
        number, rows, columns = self.form(group, shape)
        for place in range(number):
            yield Matrix(name, place * rows * columns, rows, columns)

    def _alone(self) -> Parts:
        """Return the parts of a process that has all parameters whole."""
        parameters = [own for group in self.param_groups for own in group["params"]]
        parts = Parts(parameters[0].device)
        for number, parameter in enumerate(parameters):
            whole = [Range(0, parameter.numel())]
            parts.add(str(number), parameter.shape, whole, parameter, 0)
        return parts
