"""One batch of each evaluation set before the first step, which changes nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from brought_tasks import Numbers, Plain
from from_launcher import configured
from one_process import log_of, rows
from torch import Tensor, nn

from trainer import ConfigError, Data, EvaluationSet, TrainConfig, Trainer
from trainer.data import rng
from trainer.errors import DataError

pytestmark = pytest.mark.usefixtures("fresh_accelerate")

LINE = "sanity evaluation: one batch"
CLOCKS = ("samples_per_second", "seconds", "eta_seconds", "peak_memory_bytes")


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


@dataclass(frozen=True, kw_only=True)
class Restless(Plain):
    """Whatever an evaluation could change: it draws, trains BatchNorm, and leaves another mode."""

    def build_data(self) -> Data:
        once = iter([Numbers(7, seed=4)[at] for at in range(7)])
        sets = {
            "drawn": Drawing(10, seed=1),
            "stream": Reading(11),
            "once": once,
            "stepped": EvaluationSet(Numbers(10, seed=2), evaluation_step=self.in_training_mode),
        }
        return Data(train=Drawing(64), evaluation=sets)

    def build_model(self) -> nn.Module:
        model = super().build_model()
        return nn.Sequential(nn.BatchNorm1d(8), nn.Dropout(0.3), model)

    def in_training_mode(self, model: nn.Module, batch: Any) -> Any:
        model.train()
        random.random()
        np.random.random()
        return {"error": (model(batch["x"]) - batch["y"]).abs().squeeze(-1)}


def evaluated_at_the_end(folder: Path, **settings: Any) -> TrainConfig:
    return replace(configured(folder), max_steps=4, **settings)


def same_bits(first: Tensor, second: Tensor) -> bool:
    """Compare tensors in which NaN is a value as any other."""
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


def shown(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of metrics.jsonl without clocks and memory."""
    return [{key: row[key] for key in row if key not in CLOCKS} for row in rows(folder)]


def test_a_run_is_equal_to_the_bit_with_and_without_it(tmp_path: Path) -> None:
    for name, sanity in (("with", True), ("without", False)):
        config = evaluated_at_the_end(tmp_path / name, sanity_evaluation=sanity, save_every=2)
        Trainer(Restless(), config).fit()

    with_it, without = tmp_path / "with", tmp_path / "without"
    assert shown(with_it) == shown(without)
    assert len(shown(with_it)[-1]) == 3 + 4, "an evaluation of four sets"
    files = sorted(path.relative_to(without) for path in without.rglob("*.safetensors"))
    assert len(files) > 2
    for file in files:
        assert (with_it / file).read_bytes() == (without / file).read_bytes(), file
    assert log_of(with_it).count(f"{LINE} of drawn, stream, once, stepped") == 1
    assert LINE not in log_of(without)


def test_generators_buffers_modes_and_streams_are_afterwards_as_before(tmp_path: Path) -> None:
    run = Trainer(Restless(), evaluated_at_the_end(tmp_path)).run
    run.train_mode()
    run.model[1].eval()  # type: ignore[index]
    states = rng.read()
    buffers = [buffer.clone() for buffer in run.model.buffers()]
    modes = [module.training for module in run.model.modules()]

    names = run.try_evaluation()
    assert set(names) == {
        "eval/drawn/loss",
        "eval/stream/loss",
        "eval/once/loss",
        "eval/stepped/error",
    }
    after = rng.read()
    assert all(same_bits(states[name], after[name]) for name in states)
    assert all(map(torch.equal, buffers, run.model.buffers()))
    assert [module.training for module in run.model.modules()] == modes
    assert run.data.evaluation["stream"].read == 0
    assert run.last_evaluation == {}


def test_an_error_of_the_evaluation_comes_before_the_first_step(tmp_path: Path) -> None:
    class Broken(Plain):
        def evaluation_step(self, model: nn.Module, batch: Any) -> Any:
            raise KeyError("labels")

    with pytest.raises(KeyError, match="labels"):
        Trainer(Broken(), evaluated_at_the_end(tmp_path)).fit()
    assert log_of(tmp_path).endswith(f"{LINE} (sanity_evaluation: false leaves it out)\n")
    assert not (tmp_path / "metrics.jsonl").exists()

    off = evaluated_at_the_end(tmp_path, overwrite=True, sanity_evaluation=False)
    with pytest.raises(KeyError, match="labels"):
        Trainer(Broken(), off).fit()
    assert rows(tmp_path)[0]["step"] == 1, "without it, at the first evaluation"


class Named(Plain):
    def build_data(self) -> Data:
        return Data(train=Numbers(64), evaluation={"clean": Numbers(10), "noisy": Numbers(3)})


@pytest.mark.parametrize(
    ("task", "metric", "rule"),
    [
        (Plain(), "eval/los", "the task measures no such value; did you mean 'eval/loss'?"),
        (Plain(), "eval/accuracy", "the task measures no such value; known: eval/loss"),
        (
            Named(),
            "eval/claen/loss",
            "the task measures no such value; did you mean 'eval/clean/loss'?",
        ),
        (
            Named(),
            "eval/loss",
            "the task measures it on several sets; name one: eval/clean/loss, eval/noisy/loss",
        ),
    ],
)
def test_a_misspelt_best_metric_is_found_before_the_first_step(
    tmp_path: Path, task: Plain, metric: str, rule: str
) -> None:
    trainer = Trainer(task, evaluated_at_the_end(tmp_path, best_metric=metric))
    with pytest.raises(ConfigError) as caught:
        trainer.fit()
    assert str(caught.value) == f"TrainConfig: best_metric: {metric!r}: {rule}"


def test_a_best_metric_needs_something_to_measure_on(tmp_path: Path) -> None:
    class Blind(Plain):
        def build_data(self) -> Data:
            return Data(train=Numbers(64))

    with pytest.raises(ConfigError, match="the task measures nothing: its Data has no evaluation"):
        Trainer(Blind(), evaluated_at_the_end(tmp_path, best_metric="eval/loss")).fit()
    Trainer(Blind(), evaluated_at_the_end(tmp_path, overwrite=True)).fit()
    assert LINE not in log_of(tmp_path)


def test_a_result_that_is_not_a_number_is_no_error_and_no_result(tmp_path: Path) -> None:
    class Untrained(Plain):
        calls: ClassVar[list[int]] = []

        def summarize(self, metrics: dict[str, float]) -> dict[str, float]:
            self.calls.append(1)
            return {"ratio": float("nan") if len(self.calls) == 1 else 2.0}

    trainer = Trainer(Untrained(), evaluated_at_the_end(tmp_path, best_metric="eval/ratio"))
    assert trainer.fit() == {"eval/ratio": 2.0}
    values = [row["eval/ratio"] for row in rows(tmp_path) if "eval/ratio" in row]
    assert values == [2.0], "one row, of the last step"


def test_it_is_made_on_resume_as_well_and_not_for_a_finished_run(tmp_path: Path) -> None:
    Trainer(Plain(), replace(evaluated_at_the_end(tmp_path, save_every=2), max_steps=2)).fit()
    for _ in range(2):
        Trainer(Plain(), evaluated_at_the_end(tmp_path, resume="auto")).fit()
    assert log_of(tmp_path).count(LINE) == 2, "at the start, and when it was resumed"


def test_loading_processes_do_not_stay(tmp_path: Path) -> None:
    class Slow(Plain):
        def build_data(self) -> Data:
            return Data(train=Numbers(64), evaluation={"a": Numbers(10), "b": Numbers(3)})

    run = Trainer(Slow(), evaluated_at_the_end(tmp_path, workers=2)).run
    run.try_evaluation()
    kept = [measured.batches._kept_loader for measured in run.evaluation_sets.values()]
    assert kept == [None, None]


def test_an_empty_stream_is_found(tmp_path: Path) -> None:
    class Empty(Plain):
        def build_data(self) -> Data:
            return Data(train=Numbers(64), evaluation={"none": iter(())})

    with pytest.raises(DataError, match=r"^Data\.evaluation\['none'\] gave nothing: an empty"):
        Trainer(Empty(), evaluated_at_the_end(tmp_path)).fit()
