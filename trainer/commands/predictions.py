"""Predictions of an evaluation as JSON lines, written after each batch.

Each example of a data set is a line, in the order of the data set on any number of processes. A
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

if TYPE_CHECKING:
    from ..evaluator import MeasuredSet
    from ..run import Run

INDEX = "index"  # the place of an example in the data set


def write_predictions(run: Run, evaluation_set: MeasuredSet, path: Path) -> int:
    """Write the predictions for an evaluation set, and return the number of examples.

    Collective: call on every rank.

    Args:
        path: the file that the main process writes. A file that is not complete has another name.

    Raises:
        DataError: ``prediction_step`` returned no value for each example.
    """
    part = part_of(path)
    rows: list[dict[str, Any]] = []
    written = 0

    def append() -> None:
        part.parent.mkdir(parents=True, exist_ok=True)
        # Half of an emoji becomes an escape of JSON, which reads back as the same text.
        mode = "a" if written else "w"
        with part.open(mode, encoding="utf-8", errors="backslashreplace") as file:
            for index, row in enumerate(rows, written):
                print(json.dumps({INDEX: index, **row}, ensure_ascii=False), file=file)

    with run.evaluating(evaluation_set):
        for batch, examples in evaluation_set:
            predicted = run.task.prediction_step(run.model, run.strategy.to_device(batch))
            rows = list(chain(*run.agreement.gather(_rows(predicted, examples))))
            run.agreement.run_on_main(append)
            written += len(rows)

    run.agreement.run_on_main(lambda: publish(path))
    return written


def _rows(predicted: Any, examples: int) -> list[dict[str, Any]]:
    """Return the predictions for a batch, a mapping for each example.

    Args:
        predicted: the result of ``prediction_step``.
        examples: number of examples. 0 for a padding batch.

    Raises:
        DataError: the result is no mapping with an entry for each example, or holds a value that
            JSON cannot hold.
    """
    if not isinstance(predicted, Mapping) or not predicted or INDEX in predicted:
        rule = f"must return {{name: an entry for each example}}, and no name {INDEX!r}"
        raise DataError(f"prediction_step {rule}")
    if not examples:
        return []

    # Tensors and arrays become lists, NaN and infinity None.
    try:
        text = json.dumps(dict(predicted), default=lambda value: value.tolist())
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise DataError(f"prediction_step: JSON cannot hold the result: {error}") from None
    columns = json.loads(text, parse_constant=lambda name: None)
    for name, entries in columns.items():
        if not isinstance(entries, list) or len(entries) != examples:
            rule = f"must have an entry for each of the {examples} examples of the batch"
            raise DataError(f"prediction_step: {name!r} {rule}")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
