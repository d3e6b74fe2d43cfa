"""A confusion matrix of each evaluation as one picture, instead of a curve for each element."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..hooks import Callback, StepInfo
from ..reporting.media import ConfusionMatrix
from ..run import Run
from ..text import did_you_mean

Elements = dict[tuple[int, int], float]  # of a matrix, by row and column


class ShowConfusion(Callback):
    """Shows a metric that is a matrix as one picture, and keeps its elements out of the trackers.

    ``evaluation_step`` returns the counts of a batch as a plain sum: ``{"confusion": (counts,
    None)}``, of shape (C, C), a row for each true class. metrics.jsonl keeps every element.

    Args:
        metric: the name in ``evaluation_step`` or ``build_metrics``, of whichever evaluation set.
        names: of the classes.
    """

    def __init__(self, metric: str = "confusion", names: Sequence[str] | None = None) -> None:
        self.metric = metric.removeprefix("eval/")
        self.names = names
        self._has_looked = False

    def on_launch(self, run: Run) -> None:
        """Keep the matrix's elements out of the trackers."""
        run.matrices.add(self.metric)

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Show each such matrix of an evaluation."""
        if not run.is_main or info.evaluation is None:
            return

        matrices = _matrices_of(info.evaluation)
        found = [matrix for matrix in matrices if is_metric(matrix, self.metric)]
        for matrix in found:
            run.show(matrix, ConfusionMatrix(_square(matrices[matrix]), self.names))

        if not found and not self._has_looked:
            known = [matrix.rpartition("/")[2] for matrix in matrices]
            hint = did_you_mean(self.metric, known)
            run.say(f"note: ShowConfusion: step {info.step} has no matrix {self.metric!r}; {hint}")
        self._has_looked = True


def element_of_matrix(name: str) -> tuple[str, int, int] | None:
    """Return matrix, row and column of a value such as ``eval/confusion/3/5``; None for others."""
    parts = name.rsplit("/", 2)
    if len(parts) < 3 or not (parts[1].isdecimal() and parts[2].isdecimal()):
        return None
    return parts[0], int(parts[1]), int(parts[2])


def is_metric(name: str, metric: str) -> bool:
    """Return whether a value such as ``eval/confusion`` or ``eval/SET/confusion`` is a metric."""
    return name == metric or name.endswith(f"/{metric}")


def _matrices_of(values: Mapping[str, float]) -> dict[str, Elements]:
    """Return the elements of each matrix among the values of an evaluation, by its name."""
    matrices: dict[str, Elements] = {}
    for name, value in values.items():
        element = element_of_matrix(name)
        if element is not None:
            matrix, row, column = element
            matrices.setdefault(matrix, {})[row, column] = value
    return matrices


def _square(elements: Elements) -> list[list[float]]:
    """Return a matrix as rows; what is missing is NaN."""
    size = 1 + max(max(place) for place in elements)
    rows = [[math.nan] * size for _ in range(size)]
    for (row, column), value in elements.items():
        rows[row][column] = value
    return rows
