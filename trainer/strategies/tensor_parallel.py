"""Columns of a matrix, as checkpoints may hold them."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Columns(NamedTuple):
    """Some columns of a matrix, stored row behind row.

    Args:
        width: how many columns.
        stride: how many elements a row of the whole matrix has.
    """

    width: int
    stride: int

    def within(self, flat: Tensor, count: int) -> Tensor:
        """View ``count`` elements of a flat matrix from its first one on, as ``(rows, width)``."""
        return flat[: self.span(count)].unfold(0, self.width, self.stride)

    def span(self, count: int) -> int:
        """Return how many elements of the matrix lie from the first to the last of ``count``."""
        rows = count // self.width
        return (rows - 1) * self.stride + self.width

    def at(self, index: int) -> int:
        """Return the place in the matrix of element ``index``, counted from the first one."""
        row, column = divmod(index, self.width)
        return row * self.stride + column
