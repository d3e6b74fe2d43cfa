"""A run that is evaluated and never trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from evaluated import Sign

from trainer import Run, TrainConfig, Trainer
from trainer.evaluation_builder import build_for_evaluation

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def built(folder: Path, weights: Path | None, **settings: Any) -> Run:
    config = TrainConfig(task="evaluated:Sign", max_steps=1, output_dir=str(folder), **settings)
    return build_for_evaluation(Sign(), config, weights)


def test_no_gradient_and_no_state_is_kept_and_no_weight_moves(tmp_path: Path) -> None:
    run = built(tmp_path / "run", None)
    trainable = [p.numel() for p in run.model.parameters() if p.requires_grad]
    assert trainable == [2], "the bias of the last layer, for engines that need one"
    assert not run.optimizer.state
    assert [p for p in run.model.parameters() if p.grad is not None] == []

    before = {name: tensor.clone() for name, tensor in run.model.state_dict().items()}
    run.evaluate()
    assert not run.optimizer.state
    for name, tensor in run.model.state_dict().items():
        assert tensor.equal(before[name]), name
    run.close()
    assert not (tmp_path / "run").exists(), "nothing is written"


def test_it_has_a_folders_weights_whatever_the_config_names(tmp_path: Path) -> None:
    config = TrainConfig(task="evaluated:Sign", max_steps=2, lr=0.1, output_dir=str(tmp_path / "a"))
    training = Trainer(Sign(), config)
    training.fit()
    trained = {name: tensor.clone() for name, tensor in training.run.model.state_dict().items()}
    expected = training.run.evaluate()

    names = {"run_name": "{experiment}-{lr}"}
    run = built(tmp_path / "b", tmp_path / "a" / "model", lr=0.5, **names)
    assert run.name == "Sign-0.5"
    for name, tensor in run.model.state_dict().items():
        assert tensor.equal(trained[name]), name
    assert run.evaluate() == expected
    run.close()
