"""Building a run: who looks at what, and when; runs that have ended; runs without checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from brought_tasks import Plain
from one_process import checkpoint, fit, losses
from resuming import Odd
from torch import nn

from trainer import Callback, ConfigError, Run, StepInfo, TrainConfig, Trainer, build
from trainer.checks.row import checks_of

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


def config_in(folder: Path, **settings: Any) -> TrainConfig:
    given = {"max_steps": 2, "micro_batch_size": 8, **settings}
    return TrainConfig(task="brought_tasks:Plain", output_dir=str(folder), **given)


class Events(Callback):
    """Notes the events of a run, and what is there by then."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, list[str]]] = []

    def note(self, event: str, run: Run) -> None:
        there = [name for name in ("directory", "data", "schedule", "facts") if hasattr(run, name)]
        self.seen.append((event, there))

    def on_launch(self, run: Run) -> None:
        self.note("launch", run)

    def on_data(self, run: Run) -> None:
        self.note("data", run)

    def on_model(self, run: Run, model: nn.Module) -> None:
        self.note("model", run)

    def on_optimizer(self, run: Run, optimizer: Any) -> None:
        self.note("optimizer", run)

    def on_start(self, run: Run) -> None:
        raise AssertionError("the loop's")


def test_hooks_look_at_each_part_before_the_next_one_is_built(tmp_path: Path) -> None:
    events = Events()
    run = build(Plain(), config_in(tmp_path), callbacks=[events])
    assert events.seen == [
        ("launch", []),
        ("data", ["directory", "data"]),
        ("model", ["directory", "data"]),
        ("optimizer", ["directory", "data"]),
    ]
    assert (run.step, run.total_steps, run.finished) == (0, 2, False)
    assert (tmp_path / "config.yaml").exists() and (tmp_path / "plan.json").exists()


@pytest.mark.parametrize("checks", ["all", "none"])
def test_a_run_for_a_loop_of_ones_own_has_the_checks_alone(checks: str, tmp_path: Path) -> None:
    config = config_in(tmp_path, checks=checks)
    run = build(Plain(), config)
    expected = [type(check) for check in checks_of(config)]
    assert [type(hook) for hook in run.callbacks] == expected
    assert bool(expected) == (checks == "all")


def test_callbacks_that_are_given_replace_the_checks(tmp_path: Path) -> None:
    assert build(Plain(), config_in(tmp_path), callbacks=[]).callbacks == []


def test_a_check_ends_the_run_before_anything_is_written(tmp_path: Path) -> None:
    class Refuses(Callback):
        def on_launch(self, run: Run) -> None:
            raise RuntimeError("refused")

    with pytest.raises(RuntimeError, match="refused"):
        build(Plain(), config_in(tmp_path / "run"), callbacks=[Refuses()])
    assert not (tmp_path / "run").exists()


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a run but the lock, which every attempt takes."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_finished_run_is_neither_trained_nor_written_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {"save_every": None, "keep_last": 1}
    first = Trainer(Plain(), config_in(tmp_path, **settings))
    evaluation = first.fit()
    before = contents(tmp_path)

    second = Trainer(Plain(), config_in(tmp_path, resume="auto", **settings))
    assert second.run.finished
    assert second.fit() == evaluation
    assert contents(tmp_path) == before
    assert "finished already at step 2; nothing to do" in capsys.readouterr().out

    longer = Trainer(Plain(), config_in(tmp_path, resume="auto", **settings | {"max_steps": 3}))
    assert not longer.run.finished and longer.run.step == 2


def test_a_resumed_run_begins_at_the_step_of_its_checkpoint(tmp_path: Path) -> None:
    fit(tmp_path / "run", Plain(), max_steps=2, save_every=1)
    resume = str(checkpoint(tmp_path / "run", 1))
    run = build(
        Plain(), config_in(tmp_path / "branch", resume=resume, micro_batch_size=24, lr=0.05)
    )
    assert (run.step, run.samples) == (1, 24)
    assert f"resumed from {resume}" in run.notices


def test_another_run_in_the_folder_is_refused(tmp_path: Path) -> None:
    Trainer(Plain(), config_in(tmp_path)).fit()
    with pytest.raises(ConfigError, match="output_dir"):
        build(Plain(), config_in(tmp_path))


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
        model = (folder / "model" / "model.safetensors").read_bytes()
        found.append((bits.seen, losses(folder), model))
    assert found[0] == found[1]
    assert len(found[0][0]) == 8
