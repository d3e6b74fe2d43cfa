"""Properties of the data order that hold for every way to cut a global batch, over two epochs."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st
from layouts import Numbers, consumed, layout, layouts

from trainer.data.indexed import IndexedData

splits = st.tuples(st.integers(1, 4), st.sampled_from((1, 2, 3)), st.sampled_from((1, 2, 4)))


@settings(max_examples=50)
@given(st.integers(1, 70), splits, st.booleans(), st.integers(0, 3))
def test_layouts_of_one_global_batch_take_the_same_steps(
    size: int, split: tuple[int, int, int], drop_last: bool, seed: int
) -> None:
    """Every way to cut a global batch: the same sets at the same steps, over two epochs and their
    ragged ends.
    """
    world, micro, accumulation = split
    batch = world * micro * accumulation
    size += batch * drop_last  # at least one whole step
    alone = IndexedData(Numbers(size), layout(micro=batch), seed=seed, drop_last=drop_last)
    count = 2 * alone.steps_per_epoch
    expected = [sorted(step) for step in consumed(alone, 0, count)]
    for other_world, other_micro, other_accumulation in set(itertools.permutations(split)):
        ranks = [
            consumed(
                IndexedData(
                    Numbers(size),
                    layout(rank, other_world, other_micro, other_accumulation),
                    seed=seed,
                    drop_last=drop_last,
                ),
                0,
                count,
            )
            for rank in range(other_world)
        ]
        assert [
            sorted(i for rank in ranks for i in rank[step]) for step in range(count)
        ] == expected
    for epoch in (expected[: count // 2], expected[count // 2 :]):
        ids = [i for step in epoch for i in step]
        assert len(set(ids)) == len(ids) == (len(epoch) * batch if drop_last else size)


@settings(max_examples=50)
@given(layouts, st.integers(0, 11), st.booleans())
def test_any_start_gives_the_rest_on_every_rank(
    shape: tuple[int, int, int, int], start: int, drop_last: bool
) -> None:
    """Also on another layout of the same global batch: the position means the same there."""
    size, world, micro, accumulation = shape
    batch = world * micro * accumulation
    size += batch * drop_last
    first = IndexedData(
        Numbers(size), layout(0, world, micro, accumulation), seed=2, drop_last=drop_last
    )
    ends = [0, *(window.end for window in first.windows(0, 11))]
    for rank in range(world):
        data = IndexedData(
            Numbers(size), layout(rank, world, micro, accumulation), seed=2, drop_last=drop_last
        )
        assert consumed(data, ends[start], 12 - start) == consumed(data, 0, 12)[start:]
    alone = IndexedData(Numbers(size), layout(micro=batch), seed=2, drop_last=drop_last)
    assert [window.end for window in alone.windows(ends[start], 11 - start)] == ends[start + 1 :]


def test_workers_keep_the_order_from_any_start_over_two_epochs() -> None:
    for rank in range(2):
        plain, loaded = (
            IndexedData(Numbers(13), layout(rank, 2, 2, 2), seed=4, workers=n) for n in (0, 2)
        )
        position = next(iter(plain.windows(0, 1))).end
        assert consumed(loaded, position, 3) == consumed(plain, 0, 4)[1:]
