"""Rows of Parquet or JSONL files that are read in blocks: more than a disk or a memory holds.

A block is a row group of a Parquet file, or some thousand lines of a JSONL file. An index of all
blocks is made once a machine: from the footers of Parquet files, and by reading JSONL files once.
``pyarrow`` decodes, and ``fsspec`` opens any address that it knows (``s3://``, ``hf://``).
``datasets`` reads rows of remote files in the order of the files, and shuffles them in a buffer.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import fsspec
import numpy as np
import psutil

from ..errors import DataError
from ..text import in_one_line, listed, several, size
from .cache import prepare_once
from .lane_stream import LaneStream, Shards
from .lanes import InLanes, lane_order
from .order import Indices, Order

FORMAT = 1  # of the index
HELD = 2  # blocks of a lane: in the step that crosses a border
MEMORY_SHARE = 0.5  # of the free memory, which the blocks of a rank may take at most


class Block(NamedTuple):
    """The place of some rows.

    Args:
        begin: the first byte of JSONL, or the number of a row group.
        end: the byte behind the last, or None for a row group.
        bytes: their size in memory, about.
    """

    url: str
    begin: int
    end: int | None
    rows: int
    bytes: int


def blocks(
    paths: str | Sequence[str] | Any,
    *,
    lines: int = 1000,
    cache_dir: str = "~/.cache/samecurve",
) -> Any:
    """Return the rows of files, as ``Data.train``: ``trainer.blocks("s3://bucket/rows/*.parquet")``.

    A row is a mapping of columns to values. The rows of an epoch are shuffled, in the same order on
    any layout, and each rank reads about its part of the blocks. ``workers`` divide that part.

    A stream of the library ``datasets`` is read by its shards. Nobody knows the number of its rows,
    so its first epoch never ends, and ``max_steps`` ends the run.

    Args:
        paths: patterns of ``.parquet`` or ``.jsonl`` files, or a stream with shards.
        lines: of a JSONL file in a block.
        cache_dir: of the index.

    Raises:
        DataError: no file matches, a file is of another kind, or a file cannot be read.
    """
    if hasattr(paths, "num_shards"):
        return LaneStream(Shards(paths))
    files: dict[str, int] = {}
    for pattern in several(paths):
        with _readable(pattern):
            found = {f.full_name: int(f.fs.size(f.path)) for f in fsspec.open_files(pattern)}
        if not found:
            raise DataError(f"blocks: {pattern}: no such file")
        files |= found

    def write_index(folder: Path) -> None:
        index = [block for url in files for block in _blocks_of(url, lines)]
        (folder / "index.json").write_text(json.dumps(index))

    folder = prepare_once(cache_dir, [FORMAT, "blocks", [*files.items()], lines], write_index)
    return Blocks([Block(*b) for b in json.loads((folder / "index.json").read_text())], files)


@contextmanager
def _readable(url: str) -> Iterator[None]:
    """Turn an error of pyarrow or of a store into a ``DataError``."""
    try:
        yield
    except Exception as error:  # each store raises its own
        raise _unreadable(url, error) from None


def _unreadable(url: str, error: Exception) -> DataError:
    line = getattr(error, "doc", "")[:60]  # which is no JSON
    reason = in_one_line(f"{error} {line}")
    return DataError(f"blocks: {url}: cannot be read: {reason}")


def _blocks_of(url: str, lines: int) -> Iterator[Block]:
    """Yield the blocks of a file. Raise ``DataError`` if the file cannot be read."""
    with _readable(url), fsspec.open(url, "rb") as file:
        if url.endswith(".parquet"):
            from pyarrow.parquet import ParquetFile

            metadata = ParquetFile(file).metadata
            for number in range(metadata.num_row_groups):
                group = metadata.row_group(number)
                if group.num_rows:
                    yield Block(url, number, None, group.num_rows, group.total_byte_size)
            return
        end = 0
        while read := [*islice(file, lines)]:
            begin, end = end, end + sum(map(len, read))
            yield Block(url, begin, end, len(read), end - begin)


class Blocks(InLanes):
    """The rows of all blocks, by number, and their order. Blocks that were read last are kept."""

    def __init__(self, index: Sequence[Block], files: dict[str, int]) -> None:
        super().__init__(files, len(index))
        if not index:
            raise DataError(f"blocks: {listed([*files])}: there is no row")
        self.index = index
        self.sizes: Indices = np.array([block.rows for block in index], np.int64)
        self.ends = np.cumsum(self.sizes).tolist()
        self.places = int(self.ends[-1])
        self.own_order = self
        self._block = lru_cache(HELD)(self._load)

    def __len__(self) -> int:
        return self.places

    def __getitem__(self, row: int) -> Any:
        number = bisect_right(self.ends, row)
        # IndexError behind the last row, which ends an iteration.
        place = row - self.ends[number] + self.index[number].rows
        try:  # a context would take as long as the row
            return self._block(number)(place)
        except Exception as error:
            raise _unreadable(self.index[number].url, error) from None

    def pieces(self, shard: int, piece: int) -> Iterator[list[Any]]:
        """Yield the rows of a block, all at once."""
        with _readable(self.index[shard].url):
            yield [*map(self._load(shard), range(self.index[shard].rows))]

    def _load(self, number: int) -> Callable[[int], Any]:
        """Read a block, and return the function from places to rows."""
        block = self.index[number]
        system, path = fsspec.core.url_to_fs(block.url)
        if block.end is None:
            from pyarrow.parquet import ParquetFile

            with system.open(path, "rb", cache_type="none") as file:
                table = ParquetFile(file).read_row_group(block.begin).combine_chunks()
            count = table.num_rows
            columns = [*zip(table.column_names, table.columns, strict=True)]

            def row(place: int) -> Any:  # a row of the table would take four times as long
                return {name: column[place].as_py() for name, column in columns}
        else:
            lines = system.cat_file(path, block.begin, block.end).splitlines()
            count = len(lines)

            def row(place: int) -> Any:
                return json.loads(lines[place])

        if count != block.rows:
            raise ValueError(f"a block has {count} rows, and had {block.rows} before")
        return row

    # -- as OwnOrder ------------------------------------------------------------------------------

    def of_epoch(self, seed: int, epoch: int) -> Order:
        return lane_order(self.sizes, seed, epoch, self.lanes)

    def plan(self, lanes: int) -> None:
        """Keep the blocks of this rank's lanes in memory.

        Raises:
            DataError: they would take too much of the free memory.
        """
        super().plan(lanes)
        of_process = HELD * -(-lanes // (self.layout.world_size * self.readers)) + 1
        self._block = lru_cache(of_process)(self._load)
        kept = min(self.shards, of_process) * self.readers
        held = kept * max(block.bytes for block in self.index)
        self._told = (
            f"blocks: {self.shards} in {len(self.files)} files, a rank holds up to {kept} of them "
            f"({size(held)})"
        )
        free = psutil.virtual_memory().available
        if held > MEMORY_SHARE * free:
            raise DataError(
                f"{self._told}, and {size(free)} are free: write smaller row groups, or lower the "
                "global batch"
            )

    def notices(self, samples: int) -> list[str]:
        return [self._told]
