"""The private attributes of Hugging Face datasets. Last seen in datasets 5.2."""

from __future__ import annotations

from typing import Any


def fingerprint(dataset: Any) -> str:
    """Return a digest of a data set's files and of all operations on the data set.

    The public ``info`` and ``version`` do not change with the content.
    """
    digest: str = dataset._fingerprint
    return digest


def has_shuffle_buffer(stream: Any) -> bool:
    """Return whether a Hugging Face stream shuffles in a buffer, which the state does not contain.

    There is no public sign. A resumed run would train some samples twice and others never (6 of
    320).
    """
    stages = [getattr(stream, "_ex_iterable", None)]
    while stages:
        stage = stages.pop()
        if type(stage).__name__ == "BufferShuffledExamplesIterable":
            return True

        # A stage reads from another stage. That of interleaved streams from several.
        stages.extend(getattr(stage, "ex_iterables", ()))
        inner = getattr(stage, "ex_iterable", None)
        if inner is not None:
            stages.append(inner)
    return False
