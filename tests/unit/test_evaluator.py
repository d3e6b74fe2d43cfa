"""Evaluation: the sets of a task, their values over all batches, and a trial that changes nothing."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from brought_tasks import Numbers, Plain
from from_launcher import configured
from layouts import layout
from one_process import log_of, rows
from torch import Tensor, nn

from trainer import (
    ConfigError,
    Data,
    DataError,
    EvaluationSet,
    Run,
    Task,
    TrainConfig,
    Trainer,
    build,
)
from trainer.config.interval import interval_of
from trainer.evaluator import (
    measured_sets,
    prefix_of_metric,
    sets_of,
)


def run_of(folder: Path, task: Task, **settings: Any) -> Run:
    """Build a run that evaluates batches of four."""
    given = {"max_steps": 4, "micro_batch_size": 8, "evaluation_batch_size": 4, **settings}
    config = TrainConfig(task="brought_tasks:Plain", output_dir=str(folder), **given)
    return build(task, config)


# -- the sets of a task ----------------------------------------------------------------------------


def data(evaluation: Any) -> Data:
    return Data(train=Numbers(8), evaluation=evaluation)


def sets(evaluation: Any) -> Any:
    return measured_sets(Task(), data(evaluation), layout(), batch_size=2)


def test_a_single_set_has_no_name_and_several_have_theirs() -> None:
    numbers = Numbers(3)
    noisy = EvaluationSet(numbers, every="1/4 epoch")
    assert sets_of(data(None)) == sets_of(data({})) == {}
    assert sets_of(data(numbers)) == {"": EvaluationSet(numbers)}
    assert sets_of(data(noisy)) == {"": noisy}
    several = sets_of(data({"clean": numbers, "noisy": noisy}))
    assert several == {"clean": EvaluationSet(numbers), "noisy": noisy}
    by_number = {0: "a", 1: "b"}
    assert sets_of(data(by_number)) == {"": EvaluationSet(by_number)}, "rows by number"


@pytest.mark.parametrize(
    ("evaluation", "told"),
    [
        ({"a/b": [1]}, "Data.evaluation: ['a/b']: the names of sets must be text without a slash"),
        ({1: [1]}, "Data.evaluation: [1]: the names of sets must be text"),
        ({"a": [1], "b": []}, "Data.evaluation['b'] is empty"),
        ({"a": object()}, "Data.evaluation['a'] is a object, without length and indexing"),
        (
            {"a": {"train": [1], "test": [2]}},
            "Data.evaluation['a'] holds several data sets (train, test)",
        ),
    ],
)
def test_values_that_are_no_evaluation_set(evaluation: Any, told: str) -> None:
    with pytest.raises(DataError) as caught:
        sets(evaluation)
    assert str(caught.value).startswith(told)


def step(model: Any, batch: Any) -> Any:
    return {"mine": 1}


def test_a_set_takes_from_task_and_config_the_settings_that_it_does_not_have() -> None:
    task = Plain()
    own = EvaluationSet(Numbers(2), every="1/2 epoch", collate=len, evaluation_step=step)
    given = data({"a": Numbers(3), "b": own})
    hundred = interval_of(100, None)
    sets = measured_sets(task, given, layout(), batch_size=2, eval_every=hundred, steps_per_epoch=9)
    assert [found.name for found in sets.values()] == ["a", "b"]
    assert [found.every for found in sets.values()] == [hundred, interval_of("1/2 epoch", 9)]
    assert sets["a"].evaluation_step == task.evaluation_step and sets["b"].evaluation_step is step
    assert [found.has_own_step for found in sets.values()] == [False, True]
    assert [found.counts_examples for found in sets.values()] == [True, False]
    assert list(sets["b"]) == [(2, 2)], "(batch, examples), by its own collate"
    with pytest.raises(
        ConfigError, match=r"^Data\.evaluation\['b'\]: every: '1/2 epoch': a stream"
    ):
        measured_sets(task, given, layout(), batch_size=2)
    wrong = data(EvaluationSet(Numbers(3), every=0.25))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"^Data\.evaluation: every: 0\.25: must be "):
        measured_sets(task, wrong, layout(), batch_size=2)


def test_the_set_of_a_metric() -> None:
    assert prefix_of_metric("eval/loss", [""]) == "eval/"
    assert prefix_of_metric("eval/clean/recall/3", ["noisy", "clean"]) == "eval/clean/"
    assert prefix_of_metric("eval/loss", ["noisy", "clean"]) == ""


# -- the values ------------------------------------------------------------------------------------


def test_an_evaluation_measures_in_evaluation_mode_and_trains_on(tmp_path: Path) -> None:
    modes = []

    class Held(Plain):
        def build_model(self) -> nn.Module:
            return nn.Sequential(nn.Linear(8, 1), nn.BatchNorm1d(1))

        def held_in_evaluation(self, model: Any) -> list[nn.Module]:
            return [model[1]]

        def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
            modes.append((model.training, torch.is_grad_enabled()))
            return {"at": batch["at"].double()}

    run = run_of(tmp_path, Held())
    assert run.evaluate() == {"eval/at": 4.5}, "the mean over ten samples in batches of 4, 4 and 2"
    assert modes == [(False, False)] * 3
    assert [module.training for module in run.model.modules()] == [True, True, False]
    assert run.last_evaluation == {"eval/at": 4.5}
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="mat1"), run.evaluating():
        run.model(torch.rand(2, 3))
    assert [module.training for module in run.model.modules()] == [True, True, False]
    assert torch.equal(torch.get_rng_state(), before), "a callback that catches the error trains on"


class Several(Plain):
    """Two sets of 10 and 3 samples; the second has a step, metrics and an interval of its own."""

    def build_data(self) -> Data:
        noisy = EvaluationSet(Numbers(3, seed=2), every=3, evaluation_step=self.measure)
        return Data(train=Numbers(64), evaluation={"clean": Numbers(10, seed=1), "noisy": noisy})

    def measure(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        return {"at": batch["at"].double(), "recall": (torch.ones(2), torch.ones(2))}

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        return {**metrics, "count": float(len(metrics))}


def test_all_sets_are_measured_or_those_that_are_named(tmp_path: Path) -> None:
    run = run_of(tmp_path, Several())
    of_noisy = {"at": 1.0, "recall/0": 1.0, "recall/1": 1.0, "count": 3.0}
    noisy = {f"eval/noisy/{name}": value for name, value in of_noisy.items()}
    assert run.evaluate(["noisy"]) == run.evaluate("noisy") == noisy
    assert list(run.evaluate()) == ["eval/clean/loss", "eval/clean/count", *noisy]
    with pytest.raises(DataError, match=r"has no set 'claen'. Its sets are clean, noisy"):
        run.evaluate(["claen"])

    # The newest value of each name is kept.
    run.position.last_evaluation = {"eval/clean/loss": 0.5, "eval/noisy/at": 2.0}
    run.evaluate(["noisy"])
    assert run.last_evaluation == {"eval/clean/loss": 0.5, **noisy}


def test_a_set_with_its_own_step_has_the_torchmetrics_of_the_task_that_it_names(
    tmp_path: Path,
) -> None:
    import torchmetrics

    class Measured(Plain):
        def build_data(self) -> Data:
            own = {"mean": EvaluationSet(Numbers(3), evaluation_step=self.mean)}
            whole = EvaluationSet(
                Numbers(3), build_metrics=lambda: {"sum": torchmetrics.SumMetric()}
            )
            return Data(train=Numbers(64), evaluation={"both": Numbers(3), **own, "sum": whole})

        def build_metrics(self) -> dict[str, Any]:
            return {"sum": torchmetrics.SumMetric(), "mean": torchmetrics.MeanMetric()}

        def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
            return {"sum": batch["at"].double()}

        def mean(self, model: nn.Module, batch: Any) -> dict[str, Any]:
            return {"mean": batch["at"].double()}

    values = run_of(tmp_path, Measured()).evaluate()
    assert math.isnan(values.pop("eval/both/mean")), "a task's own step that forgets one shows it"
    assert values == {"eval/both/sum": 3.0, "eval/mean/mean": 1.0, "eval/sum/sum": 3.0}


class Blind(Plain):
    """Has no evaluation set."""

    def build_data(self) -> Data:
        return Data(train=Numbers(64))


# -- the trial before the first step ---------------------------------------------------------------

LINE = "sanity evaluation: one batch"


class Drawing(Numbers):
    """Its items draw from all global generators."""

    def __getitem__(self, at: int) -> dict[str, Tensor]:
        item = super().__getitem__(at)
        noise = random.gauss(0, 1) + float(np.random.normal()) + float(torch.randn(()))
        return {**item, "x": item["x"] + noise}


class Reading:
    """A stream that goes on where it was left, and whose state can be set."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.read = 0

    def __iter__(self) -> Iterator[Any]:
        numbers = Numbers(self.size, seed=3)
        while self.read < self.size:
            self.read += 1
            yield numbers[self.read - 1]
        self.read = 0

    def state_dict(self) -> dict[str, int]:
        return {"read": self.read}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.read = state["read"]


class Restless(Plain):
    """Changes all that an evaluation could: it draws, trains BatchNorm, leaves another mode."""

    def build_data(self) -> Data:
        sets = {
            "drawn": Drawing(10, seed=1),
            "stream": Reading(11),
            "stepped": EvaluationSet(Numbers(10, seed=2), evaluation_step=self.in_training_mode),
        }
        return Data(train=Drawing(64), evaluation=sets)

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.3), super().build_model())

    def in_training_mode(self, model: nn.Module, batch: Any) -> Any:
        model.train()
        random.random()
        np.random.random()
        return {"error": (model(batch["x"]) - batch["y"]).abs().squeeze(-1)}


def four_steps(folder: Path, **settings: Any) -> TrainConfig:
    return configured(folder, max_steps=4, **settings)


class Recall(Plain):
    """Divides by a count that is 0 in the first batch."""

    def evaluation_step(self, model: Any, batch: Any) -> dict[str, Any]:
        return {"positives": ((batch["at"] > 8).sum(), None)}

    def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
        return {"recall": 1 / metrics["positives"]}


def test_a_summary_that_a_single_batch_does_not_allow_is_no_error(tmp_path: Path) -> None:
    config = four_steps(tmp_path, evaluation_batch_size=4, best_metric="eval/recall")
    assert Trainer(Recall(), config).fit() == {"eval/recall": 1.0}


def test_evaluations_that_draw_numbers_change_no_training(tmp_path: Path) -> None:
    curves = []
    for every in (1, 4):
        Trainer(Restless(), four_steps(tmp_path / f"{every}", eval_every=every)).fit()
        curves.append([row["loss"] for row in rows(tmp_path / f"{every}") if "loss" in row])
    assert len(curves[0]) == 4 and curves[0] == curves[1]


def test_modes_streams_and_loaders_are_afterwards_as_before(
    tmp_path: Path,
) -> None:
    run = Trainer(Restless(), four_steps(tmp_path, workers=1)).run
    run.train_mode()
    run.model[1].eval()  # type: ignore[index]
    modes = [module.training for module in run.model.modules()]

    ends = ("drawn/loss", "stream/loss", "stepped/error")
    assert set(run.evaluator.try_out()) == {f"eval/{end}" for end in ends}
    assert [module.training for module in run.model.modules()] == modes
    assert run.data.evaluation["stream"].read == 0
    assert run.last_evaluation == {}
    kept = [vars(of.batches).get("_loader") for of in run.evaluation_sets.values()]
    assert kept == [None] * 3, "no loading process stays"


def test_a_compiled_model_is_not_compiled_for_a_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", lambda call, **_: compiled(call, backend="eager"))
    run = run_of(tmp_path, Plain(), compile=True)
    counted = torch._dynamo.utils.counters["stats"]
    counted.clear()
    assert run.evaluator.try_out() and not counted
    run.evaluate()
    assert counted["unique_graphs"] > 0


def test_an_error_of_the_evaluation_comes_before_the_first_step(tmp_path: Path) -> None:
    class Broken(Plain):
        def evaluation_step(self, model: nn.Module, batch: Any) -> Any:
            raise KeyError("labels")

    with pytest.raises(KeyError, match="labels"):
        Trainer(Broken(), four_steps(tmp_path)).fit()
    assert log_of(tmp_path).endswith(f"{LINE} of each set (sanity_evaluation: false skips it)\n")
    assert not (tmp_path / "metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("task", "wrong", "rule"),
    [
        (Plain(), "eval/los", "did you mean 'eval/loss'?"),
        (Blind(), "eval/loss", "known: none"),
    ],
)
def test_a_wrong_best_metric_is_found_before_the_first_step(
    tmp_path: Path, task: Plain, wrong: str, rule: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        Trainer(task, four_steps(tmp_path, best_metric=wrong)).fit()
    told = f"TrainConfig: best_metric: {wrong!r}: the task measures no such value; {rule}"
    assert str(caught.value) == told


def test_the_trial_is_made_on_resume_as_well_and_not_for_a_finished_run(tmp_path: Path) -> None:
    Trainer(Plain(), replace(four_steps(tmp_path, save_every=2), max_steps=2)).fit()
    for _ in range(2):
        Trainer(Plain(), four_steps(tmp_path, resume="auto")).fit()
    assert log_of(tmp_path).count(LINE) == 2, "at the start, and when it was resumed"
