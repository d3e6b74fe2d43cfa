"""The best checkpoint over a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from one_process import checkpoint, fit, log_of, lose, steps
from resuming import Odd
from torch import Tensor, nn

from trainer import TrainerError

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
    said = "note: best/ of step 3 is in another folder: eval/loss starts anew"
    assert said in log_of(tmp_path / "branch")
    assert [step for callback in trainer.parts.callbacks for step in callback.pinned_steps()] == [6]
    assert (tmp_path / "branch/best/model.safetensors").is_file()
    lose(tmp_path / "run", 8, 7)
    trainer = fit(tmp_path / "run", Evaluated(), resume="auto", **BEST)
    assert [step for callback in trainer.parts.callbacks for step in callback.pinned_steps()] == [3]
    assert "starts anew" not in log_of(tmp_path / "run")


def test_a_best_metric_of_no_set_ends_the_run_at_its_first_evaluation(tmp_path: Path) -> None:
    settings = {"best_metric": "eval/claen/error/rate", "sanity_evaluation": False}
    with pytest.raises(TrainerError, match="'eval/claen/error/rate': the task measures no such"):
        fit(tmp_path, Evaluated(), eval_every=1, **settings)


class Evaluated(Odd):
    """Best after three steps."""

    def build_data(self) -> Any:
        data = super().build_data()
        return type(data)(train=data.train, evaluation=data.train[:4])

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Tensor]:
        return {"loss": torch.full((len(batch),), abs(self.seen["steps"] - 3.0))}
