"""Private attributes of Hugging Face datasets: a release that removes one is named here."""

from __future__ import annotations

import pytest
from datasets import Dataset, IterableDataset, __version__, interleave_datasets

from trainer.private.datasets import fingerprint, has_shuffle_buffer

DATASETS = f"datasets {__version__}"


def test_the_fingerprint_changes_with_the_rows() -> None:
    dataset = Dataset.from_dict({"number": [1, 2]})
    assert hasattr(dataset, "_fingerprint"), f"{DATASETS} has no Dataset._fingerprint"
    assert fingerprint(dataset) == fingerprint(dataset)
    assert fingerprint(dataset) != fingerprint(dataset.select([0]))


@pytest.fixture
def stream() -> IterableDataset:
    return Dataset.from_dict({"number": [*range(8)]}).to_iterable_dataset(num_shards=2)


def test_a_stream_has_stages(stream: IterableDataset) -> None:
    assert hasattr(stream, "_ex_iterable"), f"{DATASETS} has no IterableDataset._ex_iterable"


def test_a_shuffle_buffer_is_found_behind_other_stages(stream: IterableDataset) -> None:
    shuffled = stream.shuffle(seed=0, buffer_size=4)
    message = f"{DATASETS} has no BufferShuffledExamplesIterable in _ex_iterable"
    assert has_shuffle_buffer(shuffled), message
    assert has_shuffle_buffer(shuffled.map(lambda row: row).filter(lambda row: True)), message
    assert has_shuffle_buffer(interleave_datasets([stream, shuffled])), message


def test_other_streams_have_no_shuffle_buffer(stream: IterableDataset) -> None:
    assert not has_shuffle_buffer(stream.map(lambda row: row))
    assert not has_shuffle_buffer(interleave_datasets([stream, stream]))
    assert not has_shuffle_buffer(range(3))
