"""Predictions of an evaluation as JSON lines, in the order of the data set on any layout."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint.disk import part_of, publish
from ..errors import DataError
from ..reporting.directory import as_json

if TYPE_CHECKING:
    from ..evaluator import MeasuredSet
    from ..run import Run


def write_predictions(run: Run, sets: Mapping[str, MeasuredSet], path: Path) -> dict[str, int]:
    """Write predictions of sets, and return the number of examples of each file. Collective.

    A set with a name has FILE.NAME.jsonl. A file that is not complete has another name.

    Raises:
        DataError: ``prediction_step`` returned no value for each example.
    """
    counts = {}
    for name, evaluation_set in sets.items():
        file = path.with_suffix(f".{name}.jsonl" if name else ".jsonl")
        part = Path(os.devnull)  # of the ranks that write nothing
        if run.is_main:
            file.parent.mkdir(parents=True, exist_ok=True)
            part = part_of(file)

        count = 0
        # Half of an emoji becomes an escape of JSON, which reads back as the same text.
        with (
            part.open("w", encoding="utf-8", errors="backslashreplace") as lines,
            run.evaluating(evaluation_set),
        ):
            for batch, examples in evaluation_set:
                predicted = run.task.prediction_step(run.model, run.strategy.to_device(batch))
                of_ranks = run.agreement.gather(_rows(predicted, examples))
                # Each process that shares rows has all of them.
                for row in chain(*of_ranks[:: run.plan.context_parallel]):
                    print(json.dumps(dict(index=count, **row), ensure_ascii=False), file=lines)
                    count += 1

        if run.is_main:
            publish(file)
        counts[str(file)] = count
        run.say(f"predictions: {file}, {count:,} examples")
    return counts


def _rows(predicted: Any, examples: int) -> list[dict[str, Any]]:
    """Return a mapping for each example of a batch. A padding batch has none."""
    if not examples:
        return []
    try:
        # Tensors and arrays become lists, NaN and infinity None.
        columns = as_json(dict(predicted), lambda value: value.tolist())
        if "index" in columns:
            raise ValueError("no name 'index', which is the place in the data")
        rows = zip(range(examples), *columns.values(), strict=True)
        return [dict(zip(columns, row, strict=True)) for _, *row in rows]
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise DataError(
            "prediction_step must return {name: an entry that JSON can hold for each of the "
            f"{examples} examples}}: {error}"
        ) from None
