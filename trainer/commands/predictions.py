"""Predictions of an evaluation as JSON lines, written while they are made.

Each example of a data set is one line, in the order of the data set on any number of processes. One
batch of all ranks is in memory.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.disk import part_of, publish
from ..errors import DataError
from ..reporting.directory import with_nulls

if TYPE_CHECKING:
    from ..evaluator import MeasuredSet
    from ..run import Run

INDEX = "index"  # the place of an example in its data set


def write_predictions(run: Run, evaluation_set: MeasuredSet, path: Path) -> int:
    """Write the predictions for each example of an evaluation set, and return how many.

    Collective: call on every rank.

    Args:
        path: of the file, which the main process writes. It has its name when it is complete.

    Raises:
        DataError: ``prediction_step`` returned no value for each example.
    """
    part = part_of(path)
    lines: list[str] = []
    written = 0

    def append() -> None:
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("a" if written else "w", encoding="utf-8") as file:
            file.writelines(lines)

    with run.evaluating(evaluation_set):
        for batch, examples in evaluation_set:
            predicted = run.task.prediction_step(run.model, run.strategy.to_device(batch))
            of_ranks = run.agreement.gather(_rows(predicted, examples))
            numbered = enumerate(chain(*of_ranks), written)
            lines = [
                json.dumps({INDEX: index, **row}, ensure_ascii=False) + "\n"
                for index, row in numbered
            ]
            run.agreement.run_on_main(append)
            written += len(lines)

    run.agreement.run_on_main(lambda: publish(path))
    return written


def _rows(predicted: Any, examples: int) -> list[dict[str, Any]]:
    """Return the predictions for one batch, a mapping for each example.

    Args:
        predicted: the result of ``prediction_step``.
        examples: number of examples. 0 for a batch that does not count.

    Raises:
        DataError: it is no mapping with an entry for each example.
    """
    if not isinstance(predicted, Mapping) or INDEX in predicted:
        rule = f"must return {{name: an entry for each example}}, and no name {INDEX!r}"
        raise DataError(f"prediction_step {rule}")

    rows: list[dict[str, Any]] = [{} for _ in range(examples)]
    for name, value in predicted.items():
        entries = _plain(value)
        if examples and (not isinstance(entries, list) or len(entries) != examples):
            rule = f"{name!r} must have an entry for each of the {examples} examples of the batch"
            raise DataError(f"prediction_step: {rule}")
        for row, entry in zip(rows, entries, strict=False):
            row[name] = entry
    return rows


def _plain(value: Any) -> Any:
    """Return a tensor, an array or a sequence as lists, and None for NaN and infinity."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return with_nulls([_plain(entry) for entry in value])
    return value
