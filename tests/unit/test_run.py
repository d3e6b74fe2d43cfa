"""The live parts of a training between its steps: position, notices, saves and evaluations."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from brought_tasks import Numbers, Plain
from one_process import fit, log_of, losses, steps
from torch import nn
from torch.utils.data import default_collate

from trainer import (
    Callback,
    CheckpointError,
    ConfigError,
    Data,
    DataError,
    EvaluationSet,
    Run,
    Task,
    TrainConfig,
    TrainerError,
    build,
    now,
)
from trainer.run import COUNTERS

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


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


def test_windows_begin_at_the_position_and_advance_moves_it(tmp_path: Path) -> None:
    run = run_in(tmp_path, keep_last=0, schedule="linear", lr=0.1)
    seen = []
    for window in run.windows():
        seen.append(window.micros[0].batch["at"].tolist())
        run.optimizer.step()
        run.advance(window)
        if run.step == 2:
            break
    assert (run.step, run.step_began, run.samples) == (2, 8, 16)
    assert run.rates == pytest.approx([0.075, 0.075]), "of the step before, not of the next one"

    rest = [window.micros[0].batch["at"].tolist() for window in run.windows()]
    assert len(rest) == 2, "the steps that are left"
    indices = [index for batch in seen + rest for index in batch]
    assert len(set(indices)) == 32, "no sample comes twice"


def test_a_skipped_step_moves_the_data_but_not_the_schedule(tmp_path: Path) -> None:
    run = run_in(tmp_path, keep_last=0, schedule="linear", lr=0.1)
    first, second, third, _ = run.windows()
    run.advance(first, skipped=True)
    run.advance(second, skipped=True)
    assert (run.skipped_steps, run.skipped_in_a_row, run.samples) == (2, 2, 16)
    assert run.schedule.get_last_lr() == pytest.approx([0.1, 0.1])
    run.optimizer.step()
    run.advance(third)
    assert (run.skipped_steps, run.skipped_in_a_row, run.samples) == (2, 0, 24)


def test_notes_stand_in_the_banner_and_in_plan_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Notes(Callback):
        def on_launch(self, run: Run) -> None:
            run.note("first", "second")

    run = run_in(tmp_path, None, Notes())
    assert run.notices[:2] == ["first", "second"]
    notices = json.loads((tmp_path / "plan.json").read_text())["notices"]
    assert {"first", "second"} <= set(notices)
    assert "second" in capsys.readouterr().out


def test_what_is_said_is_printed_and_logged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_in(tmp_path)
    run.say("a line")
    assert capsys.readouterr().out.endswith("a line\n")
    assert log_of(tmp_path).endswith("a line\n")
    monkeypatch.setattr(run, "is_main", False)
    run.say("a line of another rank")
    assert "another rank" not in log_of(tmp_path) + capsys.readouterr().out


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
    with pytest.raises(TrainerError, match=r"^the loss is lost; lower lr, set max_grad_norm"):
        run.fail("the loss is lost")
    assert steps(tmp_path) == [4], "complete, though nobody else waited for it"


def test_a_save_that_fails_as_well_does_not_hide_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finish() -> None:
        raise CheckpointError("no room")

    run = run_in(tmp_path)
    monkeypatch.setattr(run.saver, "finish", finish)
    with pytest.raises(TrainerError, match=r"^the loss is lost; "):
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


def test_an_evaluation_measures_in_evaluation_mode_and_trains_on(tmp_path: Path) -> None:
    modes = []

    class Watched(Plain):
        def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
            modes.append((model.training, torch.is_grad_enabled()))
            return {"at": batch["at"].double()}

    run = run_in(tmp_path, Watched(), evaluation_batch_size=4)
    run.train_mode()
    assert run.evaluate() == {"eval/at": 4.5}, "the mean over ten samples in batches of 4, 4 and 2"
    assert modes == [(False, False)] * 3
    assert run.model.training
    assert run.last_evaluation == {"eval/at": 4.5}


def test_the_default_evaluation_is_the_mean_loss_over_all_examples(tmp_path: Path) -> None:
    def with_table(items: Sequence[Any]) -> Any:
        return {"table": torch.ones(3, 1), **default_collate(items)}

    class Tables(Plain):
        """Its batches begin with a tensor that has no row for each example."""

        def build_data(self) -> Data:
            return replace(super().build_data(), collate=with_table)

    run = run_in(tmp_path, Tables(), evaluation_batch_size=4)
    data = run.data.evaluation
    whole = {name: torch.stack([item[name] for item in data]) for name in ("x", "y")}
    with torch.no_grad():
        expected = float(run.task.training_step(run.model, whole))
    assert run.evaluate()["eval/loss"] == pytest.approx(expected, rel=1e-6)


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
    run = run_in(tmp_path, Several(), evaluation_batch_size=4)
    noisy = {"at": 1.0, "recall/0": 1.0, "recall/1": 1.0, "count": 3.0}
    noisy = {f"eval/noisy/{name}": value for name, value in noisy.items()}
    assert run.evaluate(["noisy"]) == noisy == run.evaluate("noisy")
    assert run.last_evaluation == noisy
    whole = run.evaluate()
    assert list(whole) == ["eval/clean/loss", "eval/clean/count", *noisy]
    assert run.last_evaluation == whole
    with pytest.raises(DataError, match=r"has no set 'claen'; did you mean 'clean'\?"):
        run.evaluate(["claen"])


def test_the_last_values_of_each_set_are_kept(tmp_path: Path) -> None:
    run = run_in(tmp_path, Several(), evaluation_batch_size=4)
    run.last_evaluation = {"eval/clean/loss": 0.5, "eval/clean/old": 1.0, "eval/gone/loss": 2.0}
    run.evaluate(["noisy"])
    assert list(run.last_evaluation)[:3] == ["eval/clean/loss", "eval/clean/old", "eval/noisy/at"]
    assert "eval/gone/loss" not in run.last_evaluation, "of a set that there is no more"
    run.evaluate(["clean"])
    assert "eval/clean/old" not in run.last_evaluation, "all values of a set are of one evaluation"


def test_sets_can_be_iterated_in_the_order_of_the_data(tmp_path: Path) -> None:
    run = run_in(tmp_path, Several(), evaluation_batch_size=2)
    found = {}
    for name, batches in run.evaluation_sets.items():
        found[name] = [(batch["at"].tolist(), examples) for batch, examples in batches]
    assert found["noisy"] == [([0, 1], 2), ([2], 1)]
    assert [examples for _, examples in found["clean"]] == [2] * 5
    assert list(run_in(tmp_path / "one", None).evaluation_sets) == [""]


def test_a_set_with_its_own_step_has_those_torchmetrics_of_the_task_that_it_names(
    tmp_path: Path,
) -> None:
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

    values = run_in(tmp_path, Measured()).evaluate()
    assert math.isnan(values.pop("eval/both/mean")), "a task's own step that forgets one shows it"
    assert values == {"eval/both/sum": 3.0, "eval/mean/mean": 1.0, "eval/sum/sum": 3.0}


def test_without_a_set_there_is_nothing_to_evaluate(tmp_path: Path) -> None:
    class Blind(Plain):
        def build_data(self) -> Data:
            return Data(train=Numbers(64))

    with pytest.raises(DataError, match="is None: there is nothing to measure on"):
        run_in(tmp_path, Blind()).evaluate()


def test_plan_and_banner_show_the_sets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_in(tmp_path / "one", None, eval_every=3)
    plan = json.loads((tmp_path / "one" / "plan.json").read_text())
    assert plan["evaluation_samples"] == 10
    assert plan["evaluation_every"] == "every 3 steps and at the end"

    run_in(tmp_path / "two", Several(), eval_every="1/4 epoch")
    plan = json.loads((tmp_path / "two" / "plan.json").read_text())
    assert plan["evaluation_samples"] == {"clean": 10, "noisy": 3}
    assert plan["evaluation_every"]["clean"] == "every 2 steps and at the end"
    shown = "clean: 10 samples, every 2 steps and at the end; noisy: 3 samples, every 3 steps"
    assert shown in capsys.readouterr().out


def test_an_interval_below_a_step_is_refused_with_its_key(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        run_in(tmp_path, save_every="0.1 epoch")
    assert str(caught.value) == (
        "TrainConfig: save_every: '0.1 epoch': is shorter than one step: an epoch has 8 steps "
        "here, so use '1/8 epoch' or more, or a number of steps"
    )


def test_layers_that_build_model_put_into_evaluation_mode_stay_there(tmp_path: Path) -> None:
    class Held(Plain):
        def build_model(self) -> nn.Module:
            model = nn.Sequential(nn.Linear(8, 1), nn.BatchNorm1d(1))
            model[1].eval()
            return model

    run = run_in(tmp_path, Held())
    run.evaluate()
    modes = [module.training for module in run.model.modules()]
    assert modes == [True, True, False]


def test_a_checkpoint_is_made_of_the_counters_and_the_position(tmp_path: Path) -> None:
    run = run_in(tmp_path, keep_last=0)
    train(run)
    parts = run.parts()
    assert parts.step == 4 and parts.counters["samples"] == 32
    assert set(parts.counters) == {*COUNTERS, "spent"}
    assert parts.averages is None, "without ema_decay there is nothing to keep"
    assert parts.callbacks is run.callbacks


def test_parts_have_the_average_that_is_kept(tmp_path: Path) -> None:
    run = run_in(tmp_path, keep_last=0, ema_decay=0.5)
    averages = run.parts().averages
    assert averages is not None
    shapes = [shard.tensor.shape for shard, _ in averages]
    assert shapes == [average.shape for _, average in averages]
    assert sum(average.numel() for _, average in averages) == run.trainable


def test_a_stop_is_said_with_its_reason_and_agreed_on_at_a_boundary(tmp_path: Path) -> None:
    run = run_in(tmp_path)
    run.stop("enough", agreed=True)
    assert run.stop_reason == "enough" and not run.stopping
    assert "stopping: enough" in log_of(tmp_path)
    assert run.agreement.poll() == 0


def test_now_is_the_moment_of_the_window_until_the_last_one(tmp_path: Path) -> None:
    run = run_in(tmp_path, keep_last=0, seed=5)
    seen = []
    for window in run.windows():
        assert now() is window.now
        run.optimizer.step()
        run.advance(window)
        seen.append((now().step, now().samples, now().total_steps, now().seed))
    assert seen == [(1, 0, 4, 5), (2, 8, 4, 5), (3, 16, 4, 5), (4, 24, 4, 5)]
    with pytest.raises(TrainerError, match="nothing is trained"):
        now()


class Moments(Plain):
    """Keeps the moments of its evaluations."""

    def build_data(self) -> Data:
        data = super().build_data()
        return replace(data, augment=self._augment)

    @staticmethod
    def _augment(item: Any, generator: torch.Generator) -> Any:
        assert now().generator is generator, "also for the samples that are read while building"
        assert now().total_steps == 4
        return item

    def evaluation_step(self, model: nn.Module, batch: Any) -> dict[str, Any]:
        return {"step": (float(now().step), 1), "epoch": (now().epoch, 1)}


def test_a_window_knows_the_steps_of_the_run_where_stop_at_ends_it_before(tmp_path: Path) -> None:
    run = run_in(tmp_path, keep_last=0, stop_at=2)
    totals = []
    for window in run.windows():
        totals.append(now().total_steps)
        run.optimizer.step()
        run.advance(window)
    assert totals == [4, 4]


def test_an_evaluation_has_the_steps_that_are_done_and_gives_the_window_back(
    tmp_path: Path,
) -> None:
    run = run_in(tmp_path, Moments(), keep_last=1)
    assert run.evaluate() == {"eval/step": 0, "eval/epoch": 0}
    windows = run.windows()
    window = next(windows)
    run.optimizer.step()
    run.advance(window)
    assert run.evaluate() == {"eval/step": 1, "eval/epoch": 8 / 64}
    assert now() is window.now, "the step's hooks go on with it"
    windows.close()


def test_of_two_runs_each_window_has_its_own_moment(tmp_path: Path) -> None:
    first = run_in(tmp_path / "first", keep_last=0, seed=1)
    second = run_in(tmp_path / "second", keep_last=0, seed=2)
    for mine, yours in zip(first.windows(), second.windows(), strict=True):
        assert (mine.now.seed, yours.now.seed) == (1, 2)
        assert now() is yours.now


class Showing(Callback):
    """Shows at each hook of a step; on the main process alone with ``alone``."""

    def show(self, run: Run, value: Any = None) -> None:
        run.show("a", torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(run.step)))

    on_data = show
    on_start = show
    on_window = show
    before_update = show
    on_step = show
    on_save = show
    on_end = show


class Seen(Callback):
    """Keeps what is shown."""

    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_show(self, run: Run, name: str, shown: Any, step: int) -> None:
        self.steps.append(step)


def test_pictures_are_shown_at_any_hook_and_change_no_number(tmp_path: Path) -> None:
    seen = Seen()
    fit(tmp_path / "without")
    run = fit(tmp_path / "with", None, Showing(), seen)
    assert losses(tmp_path / "with") == losses(tmp_path / "without")
    said = [line for line in log_of(tmp_path / "with").splitlines() if "note: show" in line]
    assert said == ["note: show: a: not shown: before on_start nothing is written"]
    assert seen.steps == sorted(seen.steps) and set(seen.steps) == set(range(9))
    names = sorted(path.name for path in (tmp_path / "with" / "media" / "a").iterdir())
    assert names == [f"step-{step:08}.png" for step in range(9)]
    assert run.meter.spent["trackers"] > 0


def test_a_folder_with_pictures_is_one_of_a_run(tmp_path: Path) -> None:
    fit(tmp_path, None, Showing())
    fit(tmp_path, None, overwrite=True)
    assert not (tmp_path / "media").exists()


def test_other_processes_show_nothing(tmp_path: Path) -> None:
    seen = Seen()
    run = fit(tmp_path, None, seen)
    run.is_main = False
    run.show("a", torch.zeros(1, 1, 4, 4))
    assert seen.steps == []
