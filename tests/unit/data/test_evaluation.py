"""Every sample is evaluated once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from layouts import Numbers, layout

from trainer.data.evaluation import evaluation_batches


@given(st.integers(1, 40), st.integers(1, 4), st.integers(1, 6))
def test_evaluation_sees_each_sample_once(size: int, world: int, batch: int) -> None:
    parts = [list(evaluation_batches(Numbers(size), layout(r, world), batch_size=batch)) for r in range(world)]
    assert len({len(part) for part in parts}) == 1, "every rank has as many batches"
    assert sorted(int(i) for part in parts for ids, counts in part if counts for i in ids) == list(range(size))
