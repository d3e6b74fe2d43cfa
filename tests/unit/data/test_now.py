"""Where a run is, as windows, items, collates and loading processes know it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from layouts import Numbers, layout
from torch import nn
from torch.utils.data import IterableDataset, default_collate

from trainer.data.evaluation import EvaluationBatches
from trainer.data.indexed import IndexedData
from trainer.data.now import Now, at, now, set_now
from trainer.data.stream import StreamData
from trainer.errors import TrainerError

FIRST = Now(1, 0.0, 0, 1)


@pytest.fixture(autouse=True)
def nothing_noted() -> Iterator[None]:
    set_now(None)
    yield
    set_now(None)


def told(item: Any, generator: torch.Generator) -> torch.Tensor:
    """Return an item with the moment at which it is augmented, and a number that is drawn."""
    moment = now()
    assert moment.generator is generator
    drawn = float(torch.rand((), generator=moment.generator))
    return torch.tensor(
        [float(item), moment.step, moment.epoch, moment.samples, moment.total_steps, drawn],
        dtype=torch.float64,
    )


def told_together(items: list[torch.Tensor]) -> torch.Tensor:
    """Collate, and put a number of the step's own generator beside each item."""
    drawn = float(torch.rand((), generator=now().generator))
    batch: torch.Tensor = default_collate(items)
    column = torch.full((len(batch), 1), drawn, dtype=torch.float64)
    return torch.cat([batch, column], dim=1)


class Stream(IterableDataset[float]):
    def __iter__(self) -> Iterator[float]:
        yield from range(17)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_has_the_whole_epochs_of_its_steps(workers: int) -> None:
    """Its items are read for the step that trains on them."""
    found = []
    for world in (1, 2):
        rows = []
        for rank in range(world):
            data = StreamData(
                Stream(),
                layout(rank, world, 6 // world),
                seed=3,
                augment=told,
                collate=told_together,
                workers=workers,
            )
            for number, window in enumerate(data.windows(0, 6)):
                epoch, step = divmod(number, 3)
                moment = window.now
                known = (number + 1, epoch, 17 * epoch + 6 * step, moment.total_steps)
                assert (moment.step, moment.epoch, moment.samples, moment.total_steps) == known
                of_step = [row for m in window.micros if m.weight for row in m.batch.tolist()]
                assert {tuple(row[1:5]) for row in of_step} == {known}
                rows += of_step
        found.append(sorted(rows))
    assert found[0] == found[1]
    assert len({row[5] for row in rows}) == len(rows) == 34, "each sample of each epoch draws"


def test_the_generator_begins_anew_at_each_access_and_follows_from_seed_and_step() -> None:
    def drawn(seed: int, step: int) -> float:
        moment = Now(step, 0.0, 0, 1, seed=seed)
        again = torch.rand((), generator=moment.generator)
        assert torch.rand((), generator=moment.generator) == again
        return float(again)

    values = {drawn(seed, step) for seed in range(3) for step in range(50)}
    assert len(values) == 150
    assert drawn(7, 3) == pytest.approx(0.02532, abs=1e-5), "the same in every version"


def test_a_padding_batch_is_augmented_in_a_moment_too() -> None:
    ranks = [IndexedData(Numbers(1), layout(rank, 2, 1), seed=0, augment=told) for rank in range(2)]
    [first, second] = [next(rank.windows(0, 1)) for rank in ranks]
    assert sorted(micro.weight for window in (first, second) for micro in window.micros) == [0, 1]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_is_weighed_in_the_step_that_it_is_for(workers: int) -> None:
    weighed = []

    def weigh(batch: torch.Tensor) -> int:
        weighed.append(now().step)
        return len(batch)

    data = IndexedData(Numbers(8), layout(0, 1, 2, 2), seed=0, weight_of=weigh, workers=workers)
    windows = data.windows(0, 2)
    assert [(window.now.step, window.weight) for window in windows] == [(1, 4), (2, 4)]
    assert weighed == [1, 1, 2, 2]


class Told:
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> str:
        moment = now()
        return f"{index} at {moment.step} of {moment.evaluation_set}"


def test_an_evaluation_is_known_where_its_items_are_read_each_time_anew() -> None:
    for workers in (0, 1):
        batches = EvaluationBatches(Told(), layout(0, 1, 3), batch_size=3, workers=workers)
        for step in (4, 8):
            with at(Now(step, 0.5, 8, 9, "clean")):
                [(items, _)] = batches
            assert items == [f"{index} at {step} of clean" for index in range(3)]
        batches.close()


def test_outside_of_a_run_a_sentence_says_where_to_call_it() -> None:
    with pytest.raises(TrainerError, match=r"^trainer.now\(\): nothing is trained or evaluated"):
        now()


def test_threads_of_autograd_know_the_moment() -> None:
    with at(FIRST):
        seen: list[Now] = []
        thread = threading.Thread(target=lambda: seen.append(now()))
        thread.start()
        thread.join()
        assert seen == [now()]


class Scaled(nn.Module):
    """Reads the step within what is compiled."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * (now().step * 0.5)


def test_a_compiled_model_that_reads_the_step_is_not_compiled_anew_in_each() -> None:
    graphs = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Callable[..., Any]:
        graphs.append(graph)
        return graph.forward

    model = torch.compile(Scaled(), backend=backend)
    compiled = []
    for step in range(1, 12):
        with at(FIRST._replace(step=step)):
            assert model(torch.ones(2)).tolist() == [0.5 * step, 0.5 * step]
        compiled.append(len(graphs))
    assert compiled[-1] == compiled[2] <= 3, "twice: for the first number, and for all others"
