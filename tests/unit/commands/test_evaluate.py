"""``trainer evaluate`` measures what a run measured, writes predictions, and touches nothing else."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from evaluated import Sign
from launchers import command_script, json_in, json_lines, worked
from one_process import rows
from run_folders import another_run, everything
from torch import nn

from trainer import Callback, Task, TrainConfig, Trainer
from trainer.building.build import build_for_evaluation
from trainer.commands.evaluate import evaluate
from trainer.commands.predictions import _rows, write_predictions
from trainer.errors import CheckpointError, ConfigError, DataError


def train(folder: Path, task: Task | None = None, *callbacks: Callback, **settings: Any) -> Path:
    """Train for six steps, with a checkpoint every second one; return the run's folder."""
    task = task or Sign()
    given = {"max_steps": 6, "save_every": 2, "keep_last": 3, "eval_every": 2, **settings}
    name = f"{type(task).__module__}:{type(task).__name__}"
    config = TrainConfig(
        task=name, task_settings=vars(task), output_dir=str(folder), lr=0.05, **given
    )
    Trainer(task, config, callbacks=callbacks).fit()
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with a moving average and the best model of step 2."""
    folder = tmp_path_factory.mktemp("runs") / "sign"
    return train(folder, ema_decay=0.9, best_metric="eval/loss", best_mode="max")


def evaluated_at(run: Path, step: int, name: str = "eval/loss") -> dict[str, float]:
    [row] = [row for row in rows(run) if row["step"] == step and name in row]
    return {name: value for name, value in row.items() if name.startswith("eval/")}


def test_a_finished_run_has_the_values_that_it_reported_and_nothing_else_is_touched(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(run)
    with another_run(run) as writing:
        assert writing.stdout is not None and writing.stdout.readline()  # the folder is locked
        values = evaluate([str(run)])
    assert values == evaluated_at(run, 6)

    file = run / "evaluations/model.json"
    written = json_in(file)
    assert written["values"] == values
    assert written["evaluated"] == str(run / "model") and written["step"] == 6
    assert (written["strategy"], written["world_size"]) == ("single", 1)
    assert written["task"] == "evaluated:Sign" and "torch" in written["versions"]

    after = everything(run)
    kept = {path: value for path, value in before.items() if path != str(run)}
    assert {path: after[path] for path in kept} == kept
    assert set(after) - set(before) == {str(file), str(file.parent)}
    printed = capsys.readouterr().out
    assert f"eval/loss {values['eval/loss']:.4f}" in printed and f"values: {file}" in printed


@pytest.mark.parametrize(
    ("inside", "step"), [("model", 6), ("best", 2), ("checkpoints/step-00000004", 4)]
)
def test_the_best_model_and_checkpoints_with_their_moving_average(
    inside: str, step: int, run: Path
) -> None:
    assert evaluate([str(run / inside)]) == evaluated_at(run, step)
    written = json_in(run / f"evaluations/{Path(inside).name}.json")
    assert written["step"] == step


def test_a_folder_with_a_model_needs_a_config(run: Path, tmp_path: Path) -> None:
    model = tmp_path / "moved"
    model.mkdir()
    shutil.copy(run / "model/model.safetensors", model)
    with pytest.raises(ConfigError, match="config: is missing: name a training config"):
        evaluate([str(model)])

    words = [str(run / "config.yaml"), str(model)]
    assert evaluate(words) == evaluated_at(run, 6)
    assert [entry.name for entry in model.iterdir()] == ["model.safetensors"], "nothing is written"
    evaluate([*words, "--out", str(tmp_path / "values/moved.json")])
    assert json_in(tmp_path / "values/moved.json")["step"] == 0


def test_damaged_checkpoints_and_runs_that_have_not_ended(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    last = copy / "checkpoints/step-00000006"
    (last / "state.json").unlink()
    with pytest.raises(CheckpointError, match=r"step-00000006: state.json is missing"):
        evaluate([str(last)])
    shutil.rmtree(copy / "model")
    with pytest.raises(ConfigError, match="has not ended give RUN/checkpoints/NAME"):
        evaluate([str(copy)])


def test_settings_are_replaced_and_the_cut_of_the_global_batch_does_not_matter(
    tmp_path: Path,
) -> None:
    """The run's 2 x 3 x 8 examples of a step do not fit the one process that evaluates it."""
    run = train(tmp_path / "run", micro_batch_size=8, accumulation_steps=3, global_batch_size=24)
    text = (run / "config.yaml").read_text()
    text = text.replace("global_batch_size: 24", "global_batch_size: 48")
    (run / "config.yaml").write_text(text)
    values = evaluate([str(run), "--evaluation_batch_size", "5"])
    assert values == pytest.approx(evaluated_at(run, 6), rel=1e-6)

    evaluate([str(run), "--task_settings.held_out", "7", "--predictions", f"{run}/p.jsonl"])
    assert len(json_lines(run / "p.jsonl")) == 7


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["--checkpoint", "latest"], ConfigError, r"checkpoint: 'latest': unknown key"),
        (["--weights", "x"], ConfigError, "weights: 'x': is no setting of an evaluation"),
        (["--evaluation_batchsize", "3"], ConfigError, "did you mean 'evaluation_batch_size'"),
        (["--sets", "clean"], DataError, "Data.evaluation has no set 'clean'"),
        (["--task_settings.width", "8"], CheckpointError, "does not hold this model: 0.weight has"),
        (["--task_settings.held_out", "0"], DataError, "there is nothing to measure on"),
    ],
)
def test_one_clear_error_for_each_mistake(
    words: list[str], error: type[Exception], message: str, run: Path
) -> None:
    with pytest.raises(error, match=message):
        evaluate([str(run), *words])


def test_a_task_that_was_made_in_python_is_evaluated_with_its_settings(tmp_path: Path) -> None:
    """With the defaults the evaluation set would be another one, without any error."""
    config = TrainConfig(task="evaluated:Sign", max_steps=2, output_dir=str(tmp_path / "run"))
    Trainer(Sign(held_out=9), config).fit()
    predictions = tmp_path / "p.jsonl"
    values = evaluate([str(tmp_path / "run"), "--predictions", str(predictions)])
    assert values == evaluated_at(tmp_path / "run", 2) and len(json_lines(predictions)) == 9


def test_the_command_finds_a_task_beside_the_script_that_trained_it(tmp_path: Path) -> None:
    """As a user types it: in another process, from another folder."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    source = Path(str(sys.modules["evaluated"].__file__)).read_text()
    (folder / "my_sign.py").write_text(source)
    (folder / "train.py").write_text("import trainer\ntrainer.main()\n")
    output_dir = tmp_path / "runs/a"
    settings = ["task=my_sign:Sign", "max_steps=2", f"output_dir={output_dir}"]
    worked([folder / "train.py", *settings], 0)
    said = worked([command_script(tmp_path), "evaluate", "runs/a"], 0)
    assert re.search(r"eval/loss +0\.\d+", said)
    first = said.splitlines()[0]
    assert first == f"note: plan.json of the run names {folder}: code is imported from it"


# -- predictions ----------------------------------------------------------------------------------


class TooFew(Sign):
    """Predicts for the first examples of a batch alone."""

    def prediction_step(self, model: nn.Module, batch: Any) -> Any:
        return {"text": ["a"] * (len(batch[1]) - 1)}


class Emoji(Sign):
    """Predicts half of an emoji, which is no UTF-8."""

    def prediction_step(self, model: nn.Module, batch: Any) -> Any:
        return {"text": ["\ud83d, é"] * len(batch[1])}


def predicted(task: Task, folder: Path) -> Path:
    """Write the predictions of a model that is not trained."""
    config = TrainConfig(task="evaluated:Sign", max_steps=1, output_dir=str(folder / "run"))
    run = build_for_evaluation(task, config, None)
    path = folder / "predictions/p.jsonl"
    write_predictions(run, run.evaluation_sets, path)
    return path


def test_a_file_is_there_once_it_is_complete(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        predicted(TooFew(), tmp_path)
    assert not [*tmp_path.rglob("p.jsonl")]
    path = predicted(Emoji(), tmp_path)
    expected = [{"index": number, "text": "\ud83d, é"} for number in range(23)]
    assert json_lines(path) == expected and [*path.parent.iterdir()] == [path]


@pytest.mark.parametrize(
    ("values", "read"),
    [
        (torch.tensor([float("nan"), float("inf")]), [None, None]),
        (torch.full((2,), 0.5, dtype=torch.bfloat16), [0.5, 0.5]),
        ([torch.arange(number) for number in range(2)], [[], [0]]),
        ([{float("nan"): 1}] * 2, [{"NaN": 1}] * 2),
    ],
)
def test_values_of_many_types(values: object, read: list[object]) -> None:
    assert _rows({"name": values}, 2) == [{"name": value} for value in read]


@pytest.mark.parametrize(
    ("predicted", "message"),
    [
        (torch.zeros(2, 2), "keys must be str"),
        ({"index": [0, 1]}, "no name 'index'"),
        ({"a": [1, 2], "b": [1]}, "argument 3 is shorter than arguments 1-2"),
        *(({"a": [value] * 2}, "") for value in ({1}, 1j, b"x", {(1, 2): 3}, object())),
    ],
)
def test_predictions_that_are_refused(predicted: object, message: str) -> None:
    rule = "^prediction_step must return {name: an entry that JSON can hold for each of the 2 ex.*"
    with pytest.raises(DataError, match=rule + message):
        _rows(predicted, 2)


def test_sets_with_names_are_measured_and_predicted_each_in_its_own_file(tmp_path: Path) -> None:
    run = train(tmp_path / "run", Sign(named=True))
    values = evaluate([str(run), "--predictions", str(tmp_path / "p.jsonl")])
    assert values == evaluated_at(run, 6, "eval/clean/loss")
    assert set(values) == {
        f"eval/{name}/{metric}" for name in ("clean", "first") for metric in ("accuracy", "loss")
    }
    for name, count in (("clean", 23), ("first", 7)):
        moments = [row["at"] for row in json_lines(tmp_path / f"p.{name}.jsonl")]
        assert moments == [f"{name} 6"] * count
    assert not (tmp_path / "p.jsonl").exists()

    first = evaluate([str(run), "--sets", "first", "--predictions", str(tmp_path / "q.jsonl")])
    assert first == {name: value for name, value in values.items() if "/first/" in name}
    assert [file.name for file in tmp_path.glob("q*")] == ["q.first.jsonl"]
