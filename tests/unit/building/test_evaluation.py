"""The sets that a run measures on."""

from __future__ import annotations

from typing import Any

import pytest
from layouts import DrawingStream, Numbers, layout

from trainer import Data, EvaluationSet, Task
from trainer.building.evaluation import (
    best_metric_problem,
    intervals_of,
    measured_sets,
    set_of_metric,
    sets_of,
    sizes_of,
)
from trainer.config.interval import Interval, interval_of
from trainer.errors import DataError, Origin


def data(evaluation: Any, **more: Any) -> Data:
    return Data(train=Numbers(8), evaluation=evaluation, **more)


def test_a_single_set_has_no_name_and_several_have_theirs() -> None:
    rows = Numbers(3)
    assert sets_of(data(None)) == {}
    assert sets_of(data(rows)) == {"": EvaluationSet(rows)}
    assert sets_of(data(EvaluationSet(rows, every=5))) == {"": EvaluationSet(rows, every=5)}
    several = sets_of(data({"clean": rows, "noisy": EvaluationSet(rows, every="1/4 epoch")}))
    assert several == {
        "clean": EvaluationSet(rows),
        "noisy": EvaluationSet(rows, every="1/4 epoch"),
    }


def test_a_mapping_of_rows_by_number_is_a_data_set() -> None:
    rows = {0: "a", 1: "b"}
    assert sets_of(data(rows)) == {"": EvaluationSet(rows)}
    assert sizes_of(data(rows)) == 2


@pytest.mark.parametrize(
    ("evaluation", "told"),
    [
        ({}, "Data.evaluation holds no set: give some by name, or None"),
        ({"a/b": [1]}, "Data.evaluation: 'a/b': the name of a set must not be empty, and have no"),
        ({"": [1]}, "Data.evaluation: '': the name of a set must not be empty"),
        ({" ": [1]}, "Data.evaluation: ' ': the name of a set must not be empty"),
        ({1: [1]}, "Data.evaluation: 1: the name of a set must be text"),
        ({"a": None}, "Data.evaluation['a'] holds None where a data set belongs"),
        (
            {"a": EvaluationSet(EvaluationSet([1]))},
            "Data.evaluation['a'] holds an EvaluationSet where a data set belongs",
        ),
        (
            {"a": EvaluationSet([1], every=0.25)},  # type: ignore[arg-type]
            "Data.evaluation['a']: every: 0.25: must be steps such as 100, or epochs such as "
            "'2 epochs' or '1/4 epoch'",
        ),
        ({"a": EvaluationSet([1], every=0)}, "Data.evaluation['a']: every: 0: must be steps such"),
        ({"a": [1], "b": []}, "Data.evaluation['b'] is empty"),
        ({"a": object()}, "Data.evaluation['a'] is a object, without length and indexing"),
        (
            {"a": {"train": [1], "test": [2]}},
            "Data holds several data sets (train, test) where one belongs: give one of them",
        ),
    ],
)
def test_what_is_no_evaluation_set(evaluation: Any, told: str) -> None:
    with pytest.raises(DataError) as caught:
        sizes_of(data(evaluation))
    assert str(caught.value).startswith(told)


def test_sizes_are_a_number_or_a_number_for_each_name() -> None:
    assert sizes_of(data(None)) == 0
    assert sizes_of(data(Numbers(3))) == 3
    assert sizes_of(data(DrawingStream())) is None
    assert sizes_of(data({"a": Numbers(3), "b": DrawingStream()})) == {"a": 3, "b": None}
    assert sizes_of(data({"a": Numbers(3)})) == {"a": 3}, "one with a name is shown by its name"


def test_each_set_has_its_interval_or_that_of_the_config() -> None:
    given = data({"a": Numbers(3), "b": EvaluationSet(Numbers(3), every="1/2 epoch")})
    hundred = interval_of(100, None)
    assert intervals_of(given, hundred, 9) == {"a": hundred, "b": interval_of("1/2 epoch", 9)}
    assert intervals_of(given, None, 9)["a"] is None
    with pytest.raises(DataError, match=r"^Data\.evaluation\['b'\]: every: '1/2 epoch': a stream"):
        intervals_of(given, hundred, None)
    with pytest.raises(DataError, match=r"every: '1/2 epoch': is shorter than one step: an epoch"):
        intervals_of(given, hundred, 1)


class Measuring(Task):
    def evaluation_step(self, model: Any, batch: Any) -> Any:
        return {}


class Weighing(Task):
    def weight(self, batch: Any) -> float:
        return 1.0


def step(model: Any, batch: Any) -> Any:
    return {"mine": 1}


def collate(items: Any) -> list[int]:
    return [int(item) for item in items]


def test_what_a_set_does_not_have_it_takes_from_the_task() -> None:
    every: dict[str, Interval | None] = {"a": interval_of(5, None), "b": None}
    task = Task()
    given = data(
        {"a": Numbers(3), "b": EvaluationSet(Numbers(2), collate=collate, evaluation_step=step)}
    )
    sets = measured_sets(task, given, layout(), batch_size=2, every=every)
    assert list(sets) == ["a", "b"] and [found.prefix for found in sets.values()] == [
        "eval/a/",
        "eval/b/",
    ]
    assert sets["a"].evaluation_step == task.evaluation_step and sets["b"].evaluation_step is step
    assert sets["a"].build_metrics == sets["b"].build_metrics == task.build_metrics
    assert [found.has_own_step for found in sets.values()] == [False, True]
    assert sets["a"].is_due_at(5) and not sets["a"].is_due_at(6) and not sets["b"].is_due_at(5)
    assert list(sets["b"]) == [([0, 1], 2)], "(batch, examples), by its own collate"


def test_only_the_default_step_and_weight_count_the_examples_of_the_loader() -> None:
    found = []
    for task in (Task(), Measuring(), Weighing()):
        [measured] = measured_sets(task, data(Numbers(3)), layout(), batch_size=2).values()
        found.append(measured.counts_examples)
    assert found == [True, False, False]
    own = data(EvaluationSet(Numbers(3), evaluation_step=step))
    assert not measured_sets(Task(), own, layout(), batch_size=2)[""].counts_examples


def test_the_set_of_a_metric() -> None:
    assert set_of_metric("eval/loss", [""]) == ""
    assert set_of_metric("eval/clean/recall/3", ["noisy", "clean"]) == "clean"
    assert set_of_metric("eval/loss", ["noisy", "clean"]) is None


def test_a_best_metric_that_is_not_measured() -> None:
    origin = Origin("a.yaml", line=3, key="best_metric")
    assert best_metric_problem("eval/clean/f1", ["eval/clean/f1"], origin) is None
    problem = best_metric_problem("eval/claen/f1", ["eval/clean/f1", "eval/noisy/loss"], origin)
    assert str(problem) == (
        "a.yaml:3: best_metric: 'eval/claen/f1': the task measures no such value; "
        "did you mean 'eval/clean/f1'?"
    )
