"""The live parts of a training between its steps: position, notices and saves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from brought_tasks import Plain
from launchers import json_in
from one_process import log_of, steps

from trainer import (
    Callback,
    CheckpointError,
    ConfigError,
    Run,
    Task,
    TrainConfig,
    TrainerError,
    build,
    now,
)


def run_in(folder: Path, task: Task | None = None, *callbacks: Callback, **settings: Any) -> Run:
    """Build a run of four steps of eight samples out of 64."""
    given = {"max_steps": 4, "micro_batch_size": 8, **settings}
    config = TrainConfig(task="brought_tasks:Plain", output_dir=str(folder), **given)
    return build(task or Plain(), config, callbacks=callbacks)


def train(run: Run) -> None:
    """Train to the end, with plain Accelerate around the run."""
    for window in run.windows():
        for micro in window.micros:
            run.accelerator.backward(run.task.training_step(run.model, micro.batch))
        run.optimizer.step()
        run.optimizer.zero_grad()
        run.advance(window)


def test_notes_stand_in_the_banner_and_in_plan_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Notes(Callback):
        def on_launch(self, run: Run) -> None:
            run.note("first", "second")

    run = run_in(tmp_path, None, Notes())
    assert run.setup.notices[:2] == ["first", "second"]
    notices = json_in(tmp_path / "plan.json")["notices"]
    assert {"first", "second"} <= set(notices)
    assert "second" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("save_every", "expected"),
    [(None, []), (2, [2, 4, 6, 8]), (3, [3, 6]), ("1 epochs", [8]), ("0.5 epoch", [4, 8])],
)
def test_a_checkpoint_is_due_every_few_steps(
    save_every: Any, expected: list[int], tmp_path: Path
) -> None:
    run = run_in(tmp_path, save_every=save_every)
    assert [step for step in range(1, 9) if run.saves_at(step)] == expected


def test_a_failing_run_waits_for_the_save_in_flight(tmp_path: Path) -> None:
    run = run_in(tmp_path, keep_last=1)
    train(run)
    run.save()
    with pytest.raises(TrainerError, match=r"^the loss is lost. Lower lr, set max_grad_norm"):
        run.fail("the loss is lost")
    assert steps(tmp_path) == [4], "complete, though nobody else waited for it"


def test_a_save_that_fails_as_well_does_not_hide_the_reason(tmp_path: Path) -> None:
    def finish() -> None:
        raise CheckpointError("no room")

    run = run_in(tmp_path)
    run.saver.finish = finish  # type: ignore[method-assign]
    with pytest.raises(TrainerError, match=r"^the loss is lost. "):
        run.fail("the loss is lost")


def test_hooks_look_at_a_run_before_it_is_saved(tmp_path: Path) -> None:
    class Looks(Callback):
        saved_before: Any = None

        def on_save(self, run: Run) -> None:
            self.saved_before = steps(tmp_path)

    hook = Looks()
    run = run_in(tmp_path, None, hook, keep_last=1)
    train(run)
    run.save()
    run.close()
    assert hook.saved_before == [] and steps(tmp_path) == [4]


def test_an_interval_below_a_step_is_refused_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run_in(tmp_path, save_every="0.1 epoch")
    assert str(caught.value) == (
        "TrainConfig: save_every: '0.1 epoch': is shorter than one step: an epoch has 8 steps here"
    )


def test_a_stop_is_said_with_its_reason_and_agreed_on_at_a_boundary(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.stop("enough", agreed=True)
    assert run.position.stop_reason == "enough" and not run.stopping
    assert "stopping: enough" in log_of(tmp_path)
    assert run.agreement.poll() == 0


def test_a_window_knows_the_steps_of_the_run_where_stop_at_ends_it_before(tmp_path: Path) -> None:
    run = run_in(tmp_path, keep_last=0, stop_at=2)
    totals = []
    for window in run.windows():
        totals.append(now().total_steps)
        run.optimizer.step()
        run.advance(window)
    assert totals == [4, 4]
