"""A matrix among the metrics is one picture, and no curves."""

from __future__ import annotations

from typing import Any

import pytest
from fake_run import fake_run, step_info

from trainer import ConfusionMatrix, ShowConfusion
from trainer.callbacks.show_confusion import element_of_matrix
from trainer.callbacks.tracking import without_matrices

EVALUATION = {
    "eval/loss": 1.0,
    "eval/recall/0": 0.5,
    "eval/recall/1": 0.5,
    **{f"eval/confusion/{row}/{column}": 2.0 * row + column for row in (0, 1) for column in (0, 1)},
}


def shown_by(callback: ShowConfusion, evaluation: dict[str, float], **run_values: Any) -> Any:
    shown: dict[str, ConfusionMatrix] = {}
    run = fake_run(matrices=set(), show=shown.__setitem__)
    vars(run).update(run_values)
    callback.on_launch(run)
    callback.on_step(run, step_info(evaluation=evaluation))
    return run.matrices, shown


def test_a_metric_that_is_a_matrix_is_one_picture() -> None:
    matrices, shown = shown_by(ShowConfusion(names=["a", "b"]), EVALUATION)
    assert matrices == {"confusion"} and list(shown) == ["eval/confusion"]
    assert shown["eval/confusion"].counts == [[0.0, 1.0], [2.0, 3.0]]
    assert shown["eval/confusion"].names == ["a", "b"]
    assert list(without_matrices(EVALUATION, matrices)) == [
        "eval/loss",
        "eval/recall/0",
        "eval/recall/1",
    ]
    assert without_matrices(EVALUATION, set()) == EVALUATION


def test_each_evaluation_set_has_its_own_picture() -> None:
    both = {}
    for name, value in EVALUATION.items():
        both[name.replace("eval/", "eval/clean/")] = value
        both[name.replace("eval/", "eval/noisy/")] = value
    matrices, shown = shown_by(ShowConfusion("eval/confusion"), both)
    assert list(shown) == ["eval/clean/confusion", "eval/noisy/confusion"]
    assert "eval/noisy/confusion/1/1" not in without_matrices(both, matrices)


def test_other_processes_and_steps_without_an_evaluation_show_nothing() -> None:
    assert shown_by(ShowConfusion(), EVALUATION, is_main=False)[1] == {}
    run = fake_run(show=None)
    ShowConfusion().on_step(run, step_info())


def test_a_metric_that_is_no_matrix_is_a_notice_once() -> None:
    callback = ShowConfusion("confuson")
    run = fake_run(matrices=set())
    for step in (1, 2):
        callback.on_step(run, step_info(step, evaluation=EVALUATION))
    said = "note: ShowConfusion: step 1 has no matrix 'confuson'; did you mean 'confusion'?"
    assert run.said == [said]


@pytest.mark.parametrize(
    ("name", "element"),
    [
        ("eval/confusion/3/15", ("eval/confusion", 3, 15)),
        ("confusion/3/5", ("confusion", 3, 5)),
        ("eval/recall/3", None),
        ("eval/a/b", None),
        ("3/5", None),
        ("loss", None),
    ],
)
def test_an_element_of_a_matrix_is_known_by_its_two_numbers(name: str, element: Any) -> None:
    assert element_of_matrix(name) == element
