"""Rows of Parquet or JSONL files that are read in blocks: more than a disk or a memory holds.

A block is a row group of a Parquet file, or some thousand lines of a JSONL file. An index of all
blocks is made once a machine: from the footers of Parquet files, and by reading JSONL files once.
``pyarrow`` decodes, and ``fsspec`` opens any address that it knows (``s3://``, ``hf://``).
``datasets`` reads rows of remote files in the order of the files, and shuffles them in a buffer.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import psutil

from ..errors import CheckpointError, DataError
from ..text import listed, size
from .batches import Layout
from .cache import prepare_once
from .lanes import GROUP, LaneEpoch, lanes_for
from .order import Indices, Order

FORMAT = 1  # of the index
HELD = GROUP + 1  # blocks of a lane
MEMORY_SHARE = 0.5  # of the free memory, which the blocks of a rank may take at most


class Block(NamedTuple):
    """The place of some rows.

    Args:
        url: of the file.
        begin: the first byte of JSONL, or the number of a row group.
        end: the byte behind the last, or None for a row group.
        rows: their number.
        bytes: their size in memory, about.
    """

    url: str
    begin: int
    end: int | None
    rows: int
    bytes: int


def blocks(
    paths: str | Sequence[str], *, lines: int = 1000, cache_dir: str = "~/.cache/samecurve"
) -> Blocks:
    """Return the rows of files, as ``Data.train``: ``trainer.blocks("s3://bucket/rows/*.parquet")``.

    A row is a mapping of columns to values. The rows of an epoch are shuffled, in the same order on
    any layout, and each rank reads about its part of the blocks. Set ``workers: 1`` to read ahead.

    Args:
        paths: patterns of ``.parquet`` or ``.jsonl`` files.
        lines: of a JSONL file in a block.
        cache_dir: of the index.

    Raises:
        DataError: no file matches, a file is of another kind, or a file cannot be read.
    """
    files = []
    for pattern in [paths] if isinstance(paths, str) else paths:
        system, path = fsspec.core.url_to_fs(pattern)
        found = sorted(system.glob(path))
        if not found:
            raise DataError(f"blocks: {pattern}: no such file")
        for name in found:
            if not name.endswith((".parquet", ".jsonl")):
                raise DataError(f"blocks: {name}: give .parquet or .jsonl files")
            files.append((system.unstrip_protocol(name), int(system.size(name))))

    def write_index(folder: Path) -> None:
        index = [block for url, _ in files for block in _blocks_of(url, lines)]
        (folder / "index.json").write_text(json.dumps(index))

    folder = prepare_once(cache_dir, [FORMAT, "blocks", files, lines], write_index)
    index = [Block(*block) for block in json.loads((folder / "index.json").read_text())]
    return Blocks(index, dict(files))


def _blocks_of(url: str, lines: int) -> Iterator[Block]:
    """Yield the blocks of a file. Raise ``DataError`` if the file cannot be read."""
    try:
        with fsspec.open(url, "rb") as file:
            if url.endswith(".parquet"):
                from pyarrow.parquet import ParquetFile

                metadata = ParquetFile(file).metadata
                for number in range(metadata.num_row_groups):
                    group = metadata.row_group(number)
                    yield Block(url, number, None, group.num_rows, group.total_byte_size)
                return
            begin = end = rows = 0
            for line in file:
                end += len(line)
                rows += 1
                if rows == lines:
                    yield Block(url, begin, end, rows, end - begin)
                    begin, rows = end, 0
            if rows:
                yield Block(url, begin, end, rows, end - begin)
    except Exception as error:  # OSError, those of pyarrow, and of each store
        raise DataError(f"blocks: {url}: cannot be read: {error}") from None


class Blocks:
    """The rows of all blocks, by number. The blocks that were read last are kept."""

    def __init__(self, index: Sequence[Block], files: dict[str, int]) -> None:
        self.index = [block for block in index if block.rows]
        if not self.index:
            raise DataError(f"blocks: {listed([*files])}: there is no row")
        self.ends = np.cumsum([block.rows for block in self.index]).tolist()
        self.own_order = BlockOrder(self, files)
        self.kept = HELD
        self._read: OrderedDict[int, Any] = OrderedDict()

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, row: int) -> Any:
        if row >= len(self):
            raise IndexError(row)
        number = bisect_right(self.ends, row)
        block = self._block(number)
        place = row - self.ends[number] + self.index[number].rows
        if isinstance(block, list):
            return self._parsed(number, block[place])
        return {name: column[place].as_py() for name, column in block.items()}

    def _block(self, number: int) -> Any:
        """Return the lines or the columns of a block. The oldest block is dropped."""
        if number in self._read:
            self._read.move_to_end(number)
        else:
            while len(self._read) >= self.kept:
                self._read.popitem(last=False)
            self._read[number] = self._load(self.index[number])
        return self._read[number]

    def _load(self, block: Block) -> Any:
        system, path = fsspec.core.url_to_fs(block.url)
        try:
            if block.end is not None:
                lines = system.cat_file(path, block.begin, block.end).splitlines()
                count = len(lines)
                content: Any = lines
            else:
                from pyarrow.parquet import ParquetFile

                with system.open(path, "rb", cache_type="none") as file:
                    table = ParquetFile(file).read_row_group(block.begin).combine_chunks()
                count = table.num_rows
                content = dict(zip(table.column_names, table.columns, strict=True))
        except Exception as error:  # OSError, those of pyarrow, and of each store
            raise DataError(f"{block.url}: a block cannot be read: {error}") from None
        if count != block.rows:
            raise DataError(f"{block.url}: a block has {count} rows, and had {block.rows} before")
        return content

    def _parsed(self, number: int, line: bytes) -> Any:
        try:
            return json.loads(line)
        except ValueError as error:
            url = self.index[number].url
            raise DataError(f"{url}: a line is no JSON: {error}: {line[:60]!r}") from None


class BlockOrder:
    """The order of rows in blocks, as ``OwnOrder`` describes it.

    Attributes:
        lanes: of the first global batch of the run, in all its resumptions.
    """

    most_workers = 1

    def __init__(self, rows: Blocks, files: dict[str, int]) -> None:
        self.rows = rows
        self.files = files
        self.places = int(rows.ends[-1])
        self.lanes = 1
        self.text = f"{len(files)} files, {sum(files.values())} bytes"
        self._sizes: Indices = np.array([block.rows for block in rows.index], np.int64)

    def lay_out(self, layout: Layout) -> None:
        """Take the lanes of a global batch. Raises ``DataError`` as ``_plan`` does."""
        if layout.whole_micro_batches:
            raise DataError("blocks: ranks take other micro-batches of a step: drop same_bits")
        self._world_size = layout.world_size
        self._plan(lanes_for(layout.global_batch_size))

    def _plan(self, lanes: int) -> None:
        """Keep the blocks of this rank's lanes in memory.

        Raises:
            DataError: they would take too much of the free memory.
        """
        self.lanes = lanes
        self.rows.kept = HELD * -(-lanes // self._world_size) + 1
        self._held = self.rows.kept * max(block.bytes for block in self.rows.index)
        free = psutil.virtual_memory().available
        if self._held > MEMORY_SHARE * free:
            raise DataError(
                f"blocks: {self.rows.kept} blocks of a rank take {size(self._held)}, and "
                f"{size(free)} are free: write smaller row groups, or lower the global batch"
            )

    def of_epoch(self, seed: int, epoch: int) -> Order:
        return LaneEpoch(self._sizes, seed, epoch, self.lanes)

    def logged(self, seed: int, begin: int, end: int) -> dict[str, float]:
        return {}

    def notices(self, seed: int, samples: int) -> list[str]:
        held = f"a rank holds up to {self.rows.kept} ({size(self._held)})"
        return [f"blocks: {len(self.rows.index)} in {len(self.files)} files, {held}"]

    def state(self) -> Any:
        return {"files": self.files, "lanes": self.lanes}

    def restore(self, state: Any, position: int) -> None:
        """Keep the lanes of a checkpoint.

        Raises:
            CheckpointError: there are other files than before.
        """
        before = state["files"]
        changed = [
            url
            for url in sorted(before.keys() | self.files.keys())
            if before.get(url) != self.files.get(url)
        ]
        if changed:
            raise CheckpointError(
                f"the files of the training data changed: {listed(changed)}; restore them, or "
                "begin a new run with weights:"
            )
        self._plan(state["lanes"])
