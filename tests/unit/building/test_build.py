"""Building a run: its parts and the hooks between them, finished runs, evaluation alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from brought_tasks import Numbers, Plain
from evaluated import Sign
from one_process import fit, losses
from resuming import Odd
from torch import nn

from trainer import (
    Callback,
    Data,
    LaunchError,
    Run,
    StepInfo,
    TrainConfig,
    Trainer,
    build,
)
from trainer.building.build import build_for_evaluation
from trainer.row import checks_of


def config_in(folder: Path, **settings: Any) -> TrainConfig:
    given = {"max_steps": 2, "micro_batch_size": 8, **settings}
    return TrainConfig(task="brought_tasks:Plain", output_dir=str(folder), **given)


# The names that users read: from on_launch on, from on_data on, and of the finished run.
PROMISED = (
    *("task", "config", "plan", "strategy", "agreement", "meter", "is_main", "note"),
    *("name", "directory", "files", "data", "train_data", "evaluation_sets", "total_steps", "say"),
    *("step", "samples", "rates", "skipped_steps", "last_evaluation", "stopping", "stop_signal"),
    *("accelerator", "model", "optimizer", "schedule", "facts", "position"),
)


class Events(Callback):
    """Notes the events of a run, and the names that are promised by then."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, set[str]]] = []

    def note(self, run: Any, *model: object) -> None:
        there = {name for name in PROMISED if hasattr(run, name)}
        self.seen.append((type(run).__name__, there))

    on_launch = on_data = on_model = on_optimizer = note

    def on_start(self, run: Run) -> None:
        raise AssertionError("the loop's")


def test_hooks_look_at_each_part_before_the_next_one_is_built(tmp_path: Path) -> None:
    events = Events()
    run = build(Plain(), config_in(tmp_path), callbacks=[events])
    of_setup, of_data = {*PROMISED[:8]}, {*PROMISED[:16]}
    assert events.seen == [
        ("Setup", of_setup),
        ("Read", of_data),
        ("Built", of_data),
        ("Built", of_data),
    ]
    assert all(hasattr(run, name) for name in PROMISED)
    assert (run.step, run.total_steps, run.finished) == (0, 2, False)
    assert (tmp_path / "config.yaml").exists() and (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("checks", ["all", "none"])
def test_a_run_for_a_loop_of_ones_own_has_the_checks_alone(checks: str, tmp_path: Path) -> None:
    config = config_in(tmp_path, checks=checks)
    run = build(Plain(), config)
    expected = [type(check) for check in checks_of(config)]
    assert [type(hook) for hook in run.parts.callbacks] == expected
    assert bool(expected) == (checks == "all")


def test_callbacks_that_are_given_replace_the_checks(tmp_path: Path) -> None:
    assert build(Plain(), config_in(tmp_path), callbacks=[]).parts.callbacks == []


def test_a_check_ends_the_run_before_anything_is_written(tmp_path: Path) -> None:
    class Refuses(Callback):
        def on_launch(self, run: Run) -> None:
            raise RuntimeError("refused")

    with pytest.raises(RuntimeError, match="refused"):
        build(Plain(), config_in(tmp_path / "run"), callbacks=[Refuses()])
    assert not (tmp_path / "run").exists()


def test_a_finished_run_has_its_evaluation_and_a_longer_one_goes_on(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"save_every": None, "keep_last": 1}
    evaluation = Trainer(Plain(), config_in(tmp_path, **settings)).fit()
    second = Trainer(Plain(), config_in(tmp_path, resume="auto", **settings))
    assert second.run.finished
    assert second.fit() == evaluation
    longer = Trainer(Plain(), config_in(tmp_path, resume="auto", **settings | {"max_steps": 3}))
    assert not longer.run.finished and longer.run.step == 2


class Bits(Callback):
    """Keeps the losses and gradient norms as they are."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, float]] = []

    def on_step(self, run: Run, info: StepInfo) -> None:
        self.seen.append((float(info.loss), float(info.grad_norm)))


def test_without_checks_a_run_has_the_same_bits(tmp_path: Path) -> None:
    found = []
    for checks in ("all", "none"):
        folder, bits = tmp_path / checks, Bits()
        run = fit(folder, Odd(dropout=0.2), bits, checks=checks, ema_decay=0.9)
        assert bool(checks_of(run.config)) == (checks == "all")
        model = (folder / "model/model.safetensors").read_bytes()
        found.append((bits.seen, losses(folder), model))
    assert found[0] == found[1]
    assert len(found[0][0]) == 8


class Counted(Numbers):
    """Is told the epoch by other trainers."""

    def set_epoch(self, epoch: int) -> None:
        raise AssertionError


class Curriculum(Plain):
    def build_data(self) -> Data:
        return Data(train=Counted(64))


def test_a_data_set_that_waits_for_its_epoch_is_told_of(tmp_path: Path) -> None:
    run = build(Curriculum(), config_in(tmp_path / "run"))
    [note] = [line for line in run.facts["notices"] if "set_epoch" in line]
    assert note.endswith("is never called: trainer.now().epoch tells the epoch")


# -- a run that is evaluated and never trained -----------------------------------------------------


def evaluating(folder: Path, weights: Path | None, **settings: Any) -> Run:
    config = TrainConfig(task="evaluated:Sign", max_steps=1, output_dir=str(folder), **settings)
    return build_for_evaluation(Sign(), config, weights)


class Mixed(Plain):
    """Leaves one of two layers in evaluation mode."""

    def build_model(self) -> nn.Module:
        return nn.Sequential(nn.Dropout(0.5).eval(), nn.Dropout(0.5), nn.Linear(8, 1))


def test_an_evaluation_does_not_ask_for_modes(tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="leaves some layers in evaluation mode"):
        build(Mixed(), config_in(tmp_path))
    run = build_for_evaluation(Mixed(), config_in(tmp_path), None)
    assert run.evaluate() == run.evaluate()
    run.close()


def test_an_evaluation_has_a_folders_weights_whatever_the_config_names(tmp_path: Path) -> None:
    config = TrainConfig(task="evaluated:Sign", max_steps=2, lr=0.1, output_dir=str(tmp_path / "a"))
    training = Trainer(Sign(), config)
    training.fit()
    trained = {name: tensor.clone() for name, tensor in training.run.model.state_dict().items()}
    expected = training.run.evaluate()

    names = {"run_name": "{experiment}-{lr}"}
    run = evaluating(tmp_path / "b", tmp_path / "a/model", lr=0.5, **names)
    assert run.name == "Sign-0.5"
    for name, tensor in run.model.state_dict().items():
        assert tensor.equal(trained[name]), name
    assert run.evaluate() == expected
    run.close()
