"""The best checkpoint over a resume."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from brought_tasks import Numbers, Plain
from launchers import json_in
from one_process import checkpoint, fit, log_of, lose, steps
from resuming import Odd
from torch import Tensor, nn

from trainer import Data, EvaluationSet, TrainerError, load_export

pytestmark = pytest.mark.usefixtures("fresh_accelerate")
BEST = {
    "eval_every": 1,
    "best_metric": "eval/loss",
    "save_every": 1,
    "keep_last": 9,
    "sanity_evaluation": False,
}


def test_the_best_stays(tmp_path: Path) -> None:
    trainer = fit(tmp_path, Evaluated(), **{**BEST, "keep_last": 1})
    [kept] = [step for callback in trainer.parts.callbacks for step in callback.pinned_steps()]
    assert kept == 3 and steps(tmp_path) == [8, 3]


def test_the_best_of_another_folder_is_forgotten(tmp_path: Path) -> None:
    fit(tmp_path / "run", Evaluated(), **BEST)
    resume = str(checkpoint(tmp_path / "run", 5))
    trainer = fit(tmp_path / "branch", Evaluated(), resume=resume, **BEST)
    said = "note: best/, of step 3, is not in this output_dir: eval/loss starts anew"
    assert said in log_of(tmp_path / "branch")
    assert [step for callback in trainer.parts.callbacks for step in callback.pinned_steps()] == [6]
    assert (tmp_path / "branch" / "best" / "model.safetensors").is_file()
    lose(tmp_path / "run", 8, 7)
    trainer = fit(tmp_path / "run", Evaluated(), resume="auto", **BEST)
    assert [step for callback in trainer.parts.callbacks for step in callback.pinned_steps()] == [3]
    assert "starts anew" not in log_of(tmp_path / "run")


def test_patience_and_mode_may_change_on_resume(tmp_path: Path) -> None:
    fit(tmp_path, Evaluated(), **BEST)
    lose(tmp_path, 8, 7, 6)
    run = fit(tmp_path, Evaluated(), resume="auto", early_stop_patience=2, **BEST)
    assert run.step == 7, "no best since step 3: patience ends at step 6"

    lose(tmp_path, 7, 6)
    fit(tmp_path, Evaluated(), resume="auto", best_mode="max", **BEST)
    said = "note: best/, of step 3, is of another best_mode: eval/loss starts anew"
    assert said in log_of(tmp_path)
    best_json = json_in(tmp_path / "best" / "best.json")
    assert best_json["mode"] == "max" and best_json["step"] > 3


class Falling(Plain):
    """The error on the clean set is 4, 3, 2, 9, 9 ...; that on the noisy one falls all the time."""

    def build_data(self) -> Data:
        object.__setattr__(self, "measured", {"clean": 0, "noisy": 0})
        sets = {}
        for name, every in (("clean", 2), ("noisy", 1)):
            step = partial(self.measure, name)
            sets[name] = EvaluationSet(Numbers(3), every=every, evaluation_step=step)
        return Data(train=Numbers(64), evaluation=sets)

    def measure(self, name: str, model: nn.Module, batch: Any) -> dict[str, Any]:
        seen = self.measured  # type: ignore[attr-defined]
        seen[name] += 1
        errors = {"clean": [0.0, 4.0, 3.0, 2.0, 9.0], "noisy": [0.0, *range(50, 0, -1)]}[name]
        value = errors[min(seen[name], len(errors)) - 1]
        return {"error/rate": torch.full((len(batch["x"]),), value)}


def test_the_best_of_a_set_counts_the_steps_at_which_it_was_measured(tmp_path: Path) -> None:
    settings = {"best_metric": "eval/clean/error/rate", "early_stop_patience": 2, "save_every": 20}
    run = fit(tmp_path, Falling(), max_steps=20, micro_batch_size=8, **settings)
    assert run.step == 11, "patience ended at step 10, and the next one is the last"
    about = json_in(tmp_path / "best" / "best.json")
    assert about == {
        "metric": "eval/clean/error/rate",
        "mode": "min",
        "value": 2.0,
        "step": 6,
        "epoch": 0.75,
        "samples": 48,
        "evaluation": {"eval/clean/error/rate": 2.0, "eval/noisy/error/rate": 45.0},
    }
    summary = json_in(tmp_path / "summary.json")
    best = {"metric": "eval/clean/error/rate", "value": 2.0, "step": 6}
    assert summary["best"] == best
    assert summary["evaluation"].keys() == about["evaluation"].keys(), "both sets, at the end"
    assert "best eval/clean/error/rate 2.0000 at step 6" in log_of(tmp_path)
    load_export(run.task.build_model(), tmp_path / "best")


def test_a_best_metric_of_no_set_ends_the_run_at_its_first_evaluation(tmp_path: Path) -> None:
    settings = {"best_metric": "eval/claen/error/rate", "sanity_evaluation": False}
    with pytest.raises(TrainerError, match="'eval/claen/error/rate': was not measured; known"):
        fit(tmp_path, Falling(), **settings)


@dataclass(frozen=True, kw_only=True)
class Evaluated(Odd):
    """Best after three steps."""

    def build_data(self) -> Any:
        data = super().build_data()
        return type(data)(train=data.train, evaluation=data.train[:4])

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": torch.full((len(batch),), abs(self.seen["steps"] - 3.0))}
