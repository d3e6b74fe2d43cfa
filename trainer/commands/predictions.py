"""Predictions of an evaluation, written as JSON lines or parquet while they are made.

Each example of a data set is one row, in the order of the data set, whatever the number of
processes. What is in memory is one batch of all ranks, and for parquet one row group.
"""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..checkpoint.disk import delete, part_of, publish
from ..errors import CheckpointError, DataError
from ..reporting.directory import with_nulls
from ..text import did_you_mean, kind_of
from .usage import usage_error

if TYPE_CHECKING:
    import pyarrow

    from ..evaluator import MeasuredSet
    from ..run import Run

INDEX = "index"  # the column with the place of an example in its data set
# Rows of a parquet file are written in groups of about so many, or of so many bytes.
GROUP_ROWS = 1 << 14
GROUP_BYTES = 1 << 26

# The values of some examples by the name of their column.
Columns = dict[str, "np.ndarray[Any, Any] | list[Any]"]


class PredictionFile(ABC):
    """A file of predictions, which has its name once it is complete. For the main process.

    Args:
        path: the file; one of this name is replaced.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows = 0
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            delete(part_of(path))
            self.open(part_of(path))
        except OSError as error:
            raise _not_written(path, error) from None

    def add(self, columns: Columns, count: int) -> None:
        """Add the rows of some examples, which follow those of the call before.

        Raises:
            CheckpointError: the disk is full.
            DataError: a column has another type than before.
        """
        try:
            self.write(columns, range(self.rows, self.rows + count))
        except OSError as error:
            raise _not_written(self.path, error) from None
        self.rows += count

    def finish(self) -> None:
        """Close the file and give it its name."""
        try:
            self.close()
            publish(self.path)
        except OSError as error:
            raise _not_written(self.path, error) from None

    def discard(self) -> None:
        """Delete what was written, after an error."""
        with contextlib.suppress(Exception):  # another error is on its way
            self.close()
        part_of(self.path).unlink(missing_ok=True)

    @abstractmethod
    def open(self, part: Path) -> None:
        """Begin to write to a path."""

    @abstractmethod
    def write(self, columns: Columns, numbers: range) -> None:
        """Write rows, whose numbers are given."""

    @abstractmethod
    def close(self) -> None:
        """Write what is left."""


class JsonLines(PredictionFile):
    """One JSON object a row; a number that is not finite is null, as JSON has none of them."""

    def open(self, part: Path) -> None:
        self._file = open(part, "w", encoding="utf-8")  # noqa: SIM115  (``close`` closes it)

    def write(self, columns: Columns, numbers: range) -> None:
        lists = {name: _json_values(values) for name, values in columns.items()}
        for place, number in enumerate(numbers):
            row = {INDEX: number}
            for name, values in lists.items():
                row[name] = values[place]
            self._file.write(_json_line(row, number))

    def close(self) -> None:
        self._file.close()


def _json_values(values: np.ndarray[Any, Any] | list[Any]) -> Any:
    """Return a column as lists, with null for numbers that are not finite."""
    if isinstance(values, np.ndarray):
        is_float = np.issubdtype(values.dtype, np.floating)
        if not is_float or np.isfinite(values).all():
            return values.tolist()  # most are finite: no look at each in Python
        return with_nulls(values.tolist())
    return with_nulls(values)


def _json_line(row: Mapping[str, Any], number: int) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n"
    except TypeError as error:
        raise DataError(f"prediction_step: example {number} cannot be written: {error}") from None


class Parquet(PredictionFile):
    """A parquet file; its columns have the types of the first row group."""

    def open(self, part: Path) -> None:
        self._part = part
        self._tables: list[pyarrow.Table] = []
        self._schema: pyarrow.Schema | None = None
        self._writer: Any = None

    def write(self, columns: Columns, numbers: range) -> None:
        import pyarrow

        arrays = {INDEX: pyarrow.array(numbers, pyarrow.int64())}
        for name, values in columns.items():
            try:
                arrays[name] = _arrow_of(values)
            except pyarrow.ArrowException as error:
                raise _not_a_column(name, error) from None
        self._tables.append(pyarrow.table(arrays))

        rows = sum(table.num_rows for table in self._tables)
        size = sum(table.nbytes for table in self._tables)
        if rows >= GROUP_ROWS or size >= GROUP_BYTES:
            self._write_group()

    def _write_group(self) -> None:
        import pyarrow
        import pyarrow.parquet

        if self._schema is None:
            self._schema = _schema_of(self._tables)
            self._writer = pyarrow.parquet.ParquetWriter(self._part, self._schema)

        groups = []
        for table in self._tables:
            for field in self._schema:
                found = table.schema.field(field.name).type
                if found != field.type and not pyarrow.types.is_null(found):
                    raise _not_a_column(field.name, f"it is {found}, and was {field.type} before")
            groups.append(table.cast(self._schema))
        self._writer.write_table(pyarrow.concat_tables(groups))
        self._tables = []

    def close(self) -> None:
        if self._tables:
            self._write_group()
        if self._writer is not None:
            self._writer.close()
            self._writer = None


def _schema_of(tables: Sequence[pyarrow.Table]) -> pyarrow.Schema:
    """Return the types of the columns: of one that begins with nulls, those of its values."""
    import pyarrow

    schema = tables[0].schema
    for table in tables[1:]:
        for number, field in enumerate(schema):
            if pyarrow.types.is_null(field.type):
                schema = schema.set(number, table.schema.field(field.name))
    return schema


def _arrow_of(values: np.ndarray[Any, Any] | list[Any]) -> pyarrow.Array:
    """Return values as arrow's; those of an array of several dimensions as lists in lists."""
    import pyarrow

    if isinstance(values, list) or values.ndim == 1:
        return pyarrow.array(values)

    count, length = values.shape[:2]
    inner = _arrow_of(values.reshape(count * length, *values.shape[2:]))
    offsets = np.arange(count + 1, dtype=np.int32) * length
    return pyarrow.ListArray.from_arrays(offsets, inner)


def _not_a_column(name: str, why: object) -> DataError:
    return DataError(f"prediction_step: {name!r} cannot be a column of a parquet file: {why}")


def _not_written(path: Path, error: OSError) -> CheckpointError:
    return CheckpointError(f"{path}: cannot be written: {error.strerror or error}")


KINDS: dict[str, type[PredictionFile]] = {".jsonl": JsonLines, ".parquet": Parquet}


def check_file(path: Path) -> None:
    """Check that predictions can be written to a file of this name.

    Raises:
        ConfigError: its ending is not known, or a package is missing.
    """
    if path.suffix not in KINDS:
        known = did_you_mean(path.suffix, KINDS)
        raise usage_error("predictions", str(path), f"ends in neither .jsonl nor .parquet; {known}")
    if path.suffix == ".parquet" and find_spec("pyarrow") is None:
        rule = "a parquet file needs the package pyarrow: pip install pyarrow; or name a .jsonl"
        raise usage_error("predictions", str(path), rule)
    if path.is_dir():
        raise usage_error("predictions", str(path), "is a folder; name a file")


def file_of_set(path: Path, name: str) -> Path:
    """Return the file of one evaluation set: FILE itself for the only one, without a name."""
    if not name:
        return path
    return path.with_name(f"{path.stem}.{name}{path.suffix}")


# -- making them ----------------------------------------------------------------------------------


def write_predictions(run: Run, evaluation_set: MeasuredSet, path: Path) -> int:
    """Write what the task predicts for each example of an evaluation set; return how many.

    Collective: call on every rank.

    Args:
        evaluation_set: of the run.
        path: of the file, written by the main process.

    Raises:
        DataError: ``prediction_step`` returned what is no column.
        CheckpointError: the file cannot be written.
    """
    files: list[PredictionFile] = []
    run.agreement.run_on_main(lambda: files.append(KINDS[path.suffix](path)))
    written = 0
    try:
        with run.evaluating(evaluation_set):
            for columns, count in _of_all_ranks(run, evaluation_set):
                written += count
                run.agreement.run_on_main(lambda: files[0].add(columns, count))  # noqa: B023
        run.agreement.run_on_main(lambda: files[0].finish())
    except BaseException:
        for file in files:
            file.discard()
        raise
    return written


def _of_all_ranks(run: Run, batches: Iterable[tuple[Any, int]]) -> Iterator[tuple[Columns, int]]:
    """Yield the columns of each batch of all ranks, in the data's order, and how many rows.

    Collective: call on every rank.
    """
    names: list[str] | None = None
    for batch, examples in batches:
        batch = run.strategy.to_device(batch)
        predicted = run.task.prediction_step(run.model, batch)
        mine: tuple[Columns, int] | str
        try:
            mine = _columns_of(predicted, examples), examples
        except DataError as error:
            mine = str(error)
        parts = run.agreement.gather(mine)

        counted: list[tuple[Columns, int]] = []
        for part in parts:
            if isinstance(part, str):
                raise DataError(part)
            if part[1]:  # a batch that only fills up counts no examples
                counted.append(part)
        for columns, _ in counted:
            names = list(columns) if names is None else names
            if set(names) != set(columns):
                raise DataError(
                    f"prediction_step: returned {sorted(columns)} for one batch and "
                    f"{sorted(names)} for another; every batch needs the same names"
                )

        for columns, count in counted:
            yield columns, count


def _columns_of(predicted: Any, examples: int) -> Columns:
    """Return what ``prediction_step`` returned as columns in host memory.

    Args:
        examples: of the batch; 0 for a batch that does not count.

    Raises:
        DataError: it is no mapping, or a value has not one entry for each example.
    """
    if not isinstance(predicted, Mapping):
        raise DataError(
            "prediction_step must return values by name, {name: value for each example}; "
            f"it returned {kind_of(predicted)}"
        )
    if INDEX in predicted:
        raise DataError(f"prediction_step: {INDEX!r} is the place in the data set; rename yours")
    if not examples:
        return {}

    columns: Columns = {}
    for name, value in predicted.items():
        entries = _entries_of(value)
        if entries is None:
            raise DataError(
                f"prediction_step: {name!r} is {kind_of(value)} without an entry for each "
                "example: give a tensor whose first dimension is the examples, or a list"
            )
        if len(entries) != examples:
            raise DataError(
                f"prediction_step: {name!r} has {len(entries)} entries for a batch of {examples} "
                "examples; give one for each"
            )
        columns[str(name)] = entries
    return columns


def _entries_of(value: Any) -> np.ndarray[Any, Any] | list[Any] | None:
    """Return a value as an array or a list in host memory; None where it has no entries."""
    if isinstance(value, list | tuple):
        return [_entry(entry) for entry in value]
    if not _is_array(value):
        return None

    if isinstance(value, Tensor):
        value = value.detach()
        if value.dtype in (torch.bfloat16, torch.float16):
            value = value.float()  # exact; few programs read numbers of 16 bits
        value = value.cpu().numpy()
    array: np.ndarray[Any, Any] = value
    return array


def _entry(value: Any) -> Any:
    """Return an entry of a list as plain Python: a tensor in it as a number or a list."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        return value.tolist()
    return value


def _is_array(value: object) -> bool:
    """Return whether a value is a tensor or an array of at least one dimension."""
    return isinstance(value, Tensor | np.ndarray) and value.ndim > 0
