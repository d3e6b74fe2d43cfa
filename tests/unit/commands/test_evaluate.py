"""``trainer evaluate`` measures what a run measured, writes predictions, and touches nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from evaluated import Sign
from launchers import clean_environment, json_in, json_lines
from one_process import rows
from run_folders import another_run, everything
from torch import nn

import trainer
from trainer import Callback, Task, TrainConfig, Trainer
from trainer.building.build import build_for_evaluation
from trainer.commands.evaluate import evaluate
from trainer.commands.predictions import write_predictions
from trainer.errors import CheckpointError, ConfigError, DataError

pytestmark = pytest.mark.usefixtures("fresh_accelerate")


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


def lines_of(path: Path) -> list[dict[str, Any]]:
    return json_lines(path)


def test_a_finished_run_has_the_values_that_it_reported_and_nothing_else_is_touched(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(run)
    with another_run(run) as writing:
        assert writing.stdout is not None and writing.stdout.readline()  # the folder is locked
        values = evaluate([str(run)])
    assert values == evaluated_at(run, 6)

    file = run / "evaluations" / "model.json"
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
    written = json_in(run / "evaluations" / f"{Path(inside).name}.json")
    assert written["step"] == step


def test_a_folder_with_a_model_needs_a_config(run: Path, tmp_path: Path) -> None:
    model = tmp_path / "moved"
    model.mkdir()
    shutil.copy(run / "model" / "model.safetensors", model)
    with pytest.raises(ConfigError, match="belongs to no run; add --config FILE"):
        evaluate([str(model)])

    words = [str(run / "config.yaml"), str(model)]
    assert evaluate(words) == evaluated_at(run, 6)
    assert [entry.name for entry in model.iterdir()] == ["model.safetensors"], "nothing is written"
    evaluate([*words, "--out", str(tmp_path / "values" / "moved.json")])
    assert json_in(tmp_path / "values" / "moved.json")["step"] == 0


def test_damaged_checkpoints_and_runs_that_have_not_ended(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(run, copy)
    last = copy / "checkpoints" / "step-00000006"
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
    assert len(lines_of(run / "p.jsonl")) == 7


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


def test_folders_without_a_model(run: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, run.parent / "sing"):
        with pytest.raises(ConfigError, match=r"holds no model .* and no checkpoint"):
            evaluate([str(folder)])


def test_a_task_that_was_made_in_python_is_evaluated_with_its_settings(tmp_path: Path) -> None:
    """With the defaults the evaluation set would be another one, without any error."""
    config = TrainConfig(task="evaluated:Sign", max_steps=2, output_dir=str(tmp_path / "run"))
    Trainer(Sign(held_out=9), config).fit()
    predictions = tmp_path / "p.jsonl"
    values = evaluate([str(tmp_path / "run"), "--predictions", str(predictions)])
    assert values == evaluated_at(tmp_path / "run", 2) and len(lines_of(predictions)) == 9


def test_the_command_finds_a_task_beside_the_script_that_trained_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a user types it: in another process, from another folder."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "scripts"
    folder.mkdir()
    source = Path(str(sys.modules["evaluated"].__file__)).read_text()
    (folder / "my_sign.py").write_text(source)
    (folder / "train.py").write_text("import trainer\ntrainer.main()\n")
    words = ["task=my_sign:Sign", "max_steps=2", "output_dir=runs/a"]
    for command in (
        [sys.executable, "scripts/train.py", *words],
        [sys.executable, "-m", "trainer", "evaluate", "runs/a"],
    ):
        done = subprocess.run(
            command, capture_output=True, text=True, env=clean_environment(), check=False
        )
        assert done.returncode == 0, done.stderr
    assert re.search(r"eval/loss +0\.\d+", done.stdout)
    first = done.stdout.splitlines()[0]
    assert first == f"note: plan.json of the run names {folder}: code is imported from it"


# -- predictions ----------------------------------------------------------------------------------


def built(folder: Path, **settings: Any) -> trainer.Run:
    config = TrainConfig(
        task="evaluated:Sign", max_steps=1, output_dir=str(folder), evaluation_batch_size=8
    )
    return build_for_evaluation(Sign(**settings), config, None)


def predict(run: trainer.Run, path: Path, task: Task | None = None) -> int:
    """Write predictions of a run with a single set, of another task if one is given."""
    if task is not None:
        object.__setattr__(run.setup, "task", task)
    return write_predictions(run, run.evaluation_sets, path)[str(path)]


@pytest.mark.parametrize("stream", [False, True])
def test_every_example_once_in_the_order_of_the_data(stream: bool, tmp_path: Path) -> None:
    run = built(tmp_path, stream=stream)
    path = tmp_path / "new" / "predictions.jsonl"
    assert predict(run, path) == 23
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]

    items = Sign().build_data().evaluation
    run.model.eval()
    with torch.no_grad():
        logits = run.model(torch.stack([values for values, _ in items]))
    found = lines_of(path)
    assert [row["index"] for row in found] == list(range(23))
    assert [row["label"] for row in found] == [label for _, label in items]
    assert torch.allclose(torch.tensor([row["logits"] for row in found]), logits)


def test_sets_with_names_are_measured_and_predicted_each_in_its_own_file(tmp_path: Path) -> None:
    run = train(tmp_path / "run", Sign(named=True))
    values = evaluate([str(run), "--predictions", str(tmp_path / "p.jsonl")])
    assert values == evaluated_at(run, 6, "eval/clean/loss")
    assert set(values) == {
        f"eval/{name}/{metric}" for name in ("clean", "first") for metric in ("accuracy", "loss")
    }
    counts = {name: len(lines_of(tmp_path / f"p.{name}.jsonl")) for name in ("clean", "first")}
    assert counts == {"clean": 23, "first": 7} and not (tmp_path / "p.jsonl").exists()

    first = evaluate([str(run), "--sets", "first", "--predictions", str(tmp_path / "q.jsonl")])
    assert first == {name: value for name, value in values.items() if "/first/" in name}
    assert [file.name for file in tmp_path.glob("q*")] == ["q.first.jsonl"]
    with pytest.raises(DataError, match="has no set 'frist'"):
        evaluate([str(run), "--sets", "frist", "--predictions", str(tmp_path / "r.jsonl")])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("no names", "keys must be str"),
        ("index", "no name 'index'"),
        ("one number", "'float' object is not iterable"),
        ("too few", "argument 4 is shorter than arguments 1-3"),
    ],
)
def test_predictions_that_have_not_one_entry_for_each_example(
    wrong: str, message: str, tmp_path: Path
) -> None:
    rule = "must return {name: an entry that JSON can hold for each of the 8 examples}: .*"
    with pytest.raises(DataError, match=rule + message):
        predict(built(tmp_path, wrong=wrong), tmp_path / "p.jsonl")
    assert not (tmp_path / "p.jsonl").exists()


class Values(Sign):
    """Predictions of many types."""

    def prediction_step(self, model: nn.Module, batch: Any) -> Any:
        count = len(batch[1])
        return {
            "not finite": torch.tensor([float("nan"), float("inf"), *range(2, count)]),
            "half": torch.full((count,), 0.5, dtype=torch.bfloat16),
            "matrix": torch.arange(count * 4.0).view(count, 2, 2),
            "array": np.arange(count, dtype=np.int16),
            "of other lengths": [torch.arange(number) for number in range(count)],
            "yes": [number % 2 == 0 for number in range(count)],
            "text": tuple(f"é{number}" for number in range(count)),
        }


def test_values_of_many_types(tmp_path: Path) -> None:
    path = tmp_path / "values.jsonl"
    predict(built(tmp_path), path, Values())
    found = lines_of(path)
    assert [row["not finite"] for row in found[:3]] == [None, None, 2.0]
    assert found[3] == {
        "index": 3,
        "not finite": 3.0,
        "half": 0.5,
        "matrix": [[12.0, 13.0], [14.0, 15.0]],
        "array": 3,
        "of other lengths": [0, 1, 2],
        "yes": False,
        "text": "é3",
    }


@dataclass(frozen=True, kw_only=True)
class Strange(Sign):
    value: object = None

    def prediction_step(self, model: nn.Module, batch: Any) -> Any:
        return {"strange": [self.value] * len(batch[1])}


@pytest.mark.parametrize(
    "value",
    [{1}, 1j, b"x", {(1, 2): 3}, object()],
    ids=["set", "complex", "bytes", "key", "object"],
)
def test_a_prediction_that_json_cannot_hold_is_one_line(value: object, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"^prediction_step must return {name: an entry that .*$"):
        predict(built(tmp_path), tmp_path / "p.jsonl", Strange(value=value))
    assert not (tmp_path / "p.jsonl").exists()


@pytest.mark.parametrize(
    ("value", "read"),
    [("half \ud83d of an emoji, é\n\0", None), ({float("nan"): 1}, {"NaN": 1})],
    ids=["half an emoji", "NaN as a key"],
)
def test_texts_that_are_no_utf_8_and_odd_keys_are_written(
    value: object, read: object, tmp_path: Path
) -> None:
    path = tmp_path / "p.jsonl"
    predict(built(tmp_path), path, Strange(value=value))
    assert lines_of(path)[0]["strange"] == (read or value)


class Moments(Sign):
    """Predictions that say when and on which set they are made."""

    def prediction_step(self, model: nn.Module, batch: Any) -> Any:
        moment = trainer.now()
        count = len(batch[1])
        return {"set": [moment.evaluation_set] * count, "step": [moment.step] * count}


def test_a_prediction_knows_its_set_and_the_steps_of_its_model(tmp_path: Path) -> None:
    run = built(tmp_path, named=True)
    run.position.step = 7
    object.__setattr__(run.setup, "task", Moments(named=True))
    counts = write_predictions(run, run.evaluation_sets, tmp_path / "p.jsonl")
    assert counts == {f"{tmp_path}/p.clean.jsonl": 23, f"{tmp_path}/p.first.jsonl": 7}
    for name, count in (("clean", 23), ("first", 7)):
        expected = [{"index": index, "set": name, "step": 7} for index in range(count)]
        assert lines_of(tmp_path / f"p.{name}.jsonl") == expected
