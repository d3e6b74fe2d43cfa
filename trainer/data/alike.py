"""Check that every rank reads the same stream.

Every rank reads the whole of a stream from its beginning, so the first samples that ranks have read
must be the same. Data sets with an index are compared by a few of their samples (``samples.py``).
"""

from __future__ import annotations

from ..errors import DataError

SAME_DATA = (
    "build_data must give every rank the same data, which the trainer divides: do not shard it by "
    "rank (no DistributedSampler, no rows[rank::world_size], no split_dataset_by_node), sort what "
    "comes from a set, and seed generators of your own"
)


def check_same_beginning(digests: list[int], name: str) -> None:
    """Raise ``DataError`` if the ranks' digests of the first samples of a stream differ.

    Args:
        digests: one for each rank, in rank order.
        name: of the stream, for the message: ``Data.train``.
    """
    for rank, digest in enumerate(digests):
        if digest != digests[0]:
            raise DataError(
                f"rank {rank}: {name} begins with other samples than on rank 0. "
                f"Every rank reads the whole stream: {SAME_DATA}"
            )
