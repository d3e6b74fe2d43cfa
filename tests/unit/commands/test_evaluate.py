"""``trainer evaluate`` measures what a run measured, and touches nothing of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from evaluated import Sign
from launchers import clean_environment
from one_process import rows
from run_folders import another_run, everything

from trainer import Callback, Run, StepInfo, Task, TrainConfig, Trainer
from trainer.commands import cli
from trainer.commands.evaluate import evaluate
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
    settings = {"ema_decay": 0.9, "best_metric": "eval/loss", "best_mode": "max"}
    return train(folder, **settings)


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

    file = run / "evaluations" / "model.json"
    written = json.loads(file.read_text())
    assert written["values"] == values
    assert written["evaluated"] == str(run / "model") and written["step"] == 6
    assert (written["strategy"], written["world_size"]) == ("single", 1)
    assert written["task"] == "evaluated:Sign" and "torch" in written["versions"]

    after = everything(run)
    assert {path: after[path] for path in before if path != str(run)} == {
        path: before[path] for path in before if path != str(run)
    }
    assert set(after) - set(before) == {str(file), str(file.parent)}
    printed = capsys.readouterr().out
    assert f"eval/loss      {values['eval/loss']:.6g}" in printed
    assert "no optimizer state" in printed and f"values: {file}" in printed


@pytest.mark.parametrize(
    ("words", "step", "name"),
    [
        (["--best"], 2, "best"),
        (["--checkpoint", "step-4"], 4, "step-00000004"),
        (["--checkpoint", "4"], 4, "step-00000004"),
        (["--checkpoint", "latest"], 6, "step-00000006"),
    ],
)
def test_the_best_model_and_checkpoints_with_their_moving_average(
    words: list[str], step: int, name: str, run: Path
) -> None:
    assert evaluate([str(run), *words]) == evaluated_at(run, step)
    written = json.loads((run / "evaluations" / f"{name}.json").read_text())
    assert written["step"] == step


def test_a_folder_with_a_model_needs_a_config(run: Path, tmp_path: Path) -> None:
    model = tmp_path / "moved"
    model.mkdir()
    (model / "model.safetensors").write_bytes((run / "model" / "model.safetensors").read_bytes())
    with pytest.raises(ConfigError, match="belongs to no run, so its task is not known; add --con"):
        evaluate([str(model)])

    words = [str(model), "--config", str(run / "config.yaml")]
    assert evaluate(words) == evaluated_at(run, 6)
    assert [entry.name for entry in model.iterdir()] == ["model.safetensors"], "nothing is written"
    evaluate([*words, "--out", str(tmp_path / "values" / "moved.json")])
    assert json.loads((tmp_path / "values" / "moved.json").read_text())["step"] == 0


@pytest.mark.parametrize("inside", ["model", "checkpoints/step-00000004"])
def test_folders_inside_of_a_run_are_of_that_run(inside: str, run: Path) -> None:
    step = 6 if inside == "model" else 4
    assert evaluate([str(run / inside)]) == evaluated_at(run, step)


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
    assert len((run / "p.jsonl").read_text().splitlines()) == 7


class Looks(Callback):
    """Evaluates a run from outside while it trains."""

    def __init__(self) -> None:
        self.message = ""

    def on_step(self, run: Run, info: StepInfo) -> None:
        if info.step == 3:
            with pytest.raises(ConfigError) as caught:
                evaluate([str(run.directory.path)])
            self.message = str(caught.value)


def test_a_run_that_has_not_ended_names_its_newest_checkpoint(tmp_path: Path) -> None:
    looks = Looks()
    train(tmp_path / "run", None, looks, save_in_background=False)
    assert looks.message.endswith(
        "the run has not ended, so there is no model/ in it; "
        "--checkpoint latest evaluates step-00000002, its newest checkpoint"
    )


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["--best", "--checkpoint", "latest"], ConfigError, "give one of the two"),
        (
            ["--checkpoint", "step-5"],
            ConfigError,
            "no such checkpoint; there are step-00000006, st",
        ),
        (["--checkpoint", "lastest"], ConfigError, "did you mean 'latest'?"),
        (["--chekpoint", "latest"], ConfigError, r"chekpoint: no such option; did you mean --che"),
        (["--weights", "x"], ConfigError, "weights: 'x': trainer evaluate writes to no run"),
        (["--output_dir", "x"], ConfigError, "output_dir: 'x': trainer evaluate writes to no run"),
        (["--evaluation_batchsize", "3"], ConfigError, "did you mean 'evaluation_batch_size'"),
        (["--only_predictions"], ConfigError, "only_predictions: needs --predictions FILE"),
        (["--predictions", "p.csv"], ConfigError, "p.csv.*ends in neither .jsonl nor .parquet"),
        (["--task_settings.width", "8"], CheckpointError, "does not hold this model: 0.weight has"),
        (["--task_settings.held_out", "0"], DataError, "Sign.build_data gives no evaluation set"),
    ],
)
def test_one_clear_error_for_each_mistake(
    words: list[str], error: type[Exception], message: str, run: Path
) -> None:
    with pytest.raises(error, match=message):
        evaluate([str(run), *words])


@pytest.mark.parametrize("option", ["--out", "--predictions"])
def test_files_that_cannot_be_written_are_named_before_anything_is_measured(
    option: str, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "config.yaml" / "p.jsonl"
    with pytest.raises(CheckpointError, match=r"config.yaml is no folder that this user may write"):
        evaluate([str(run), option, str(file)])
    assert "eval/loss" not in capsys.readouterr().out


def test_a_folder_that_is_none_of_what_is_evaluated(run: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no such folder; in .*: did you mean 'sign'\?"):
        evaluate([str(run.parent / "sing")])
    with pytest.raises(
        ConfigError, match=r"holds neither a run .* nor a checkpoint .* nor a model"
    ):
        evaluate([str(tmp_path)])
    with pytest.raises(ConfigError, match="is a file; give the folder"):
        evaluate([str(run / "config.yaml")])
    with pytest.raises(ConfigError, match=r"is no run .* leave --best out"):
        evaluate([str(run / "model"), "--best"])
    with pytest.raises(ConfigError, match="the first word is the folder of a run or of a model"):
        evaluate(["--best", str(run)])


def test_a_task_that_was_built_by_a_script_with_other_settings_is_refused(tmp_path: Path) -> None:
    """Its model would be another one, or its evaluation set, without any error."""
    task = Sign(held_out=9)
    config = TrainConfig(task="evaluated:Sign", max_steps=2, output_dir=str(tmp_path / "run"))
    Trainer(task, config).fit()
    with pytest.raises(
        ConfigError,
        match=r"held_out: 23: the run was trained with 9 .*add --task_settings.held_out",
    ):
        evaluate([str(tmp_path / "run")])
    values = evaluate([str(tmp_path / "run"), "--task_settings.held_out", "9"])
    assert values == evaluated_at(tmp_path / "run", 2)


class Silent(Sign):
    """A task that does not say what to write."""

    prediction_step = Task.prediction_step


def test_a_task_without_predictions_is_told_the_lines_to_write(tmp_path: Path) -> None:
    run = train(tmp_path / "run", Silent(), max_steps=1)
    with pytest.raises(ConfigError, match=r"(?s)Silent does not say what .*def prediction_step\("):
        evaluate([str(run), "--predictions", str(tmp_path / "p.jsonl")])


def test_predictions_alone_need_no_labels(run: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    assert evaluate([str(run), "--predictions", str(file), "--only_predictions"]) == {}
    written = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["index"] for row in written] == list(range(23))


def test_sets_with_names_are_measured_and_predicted_each_in_its_own_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path / "run", Sign(named=True))
    values = evaluate([str(run), "--predictions", str(tmp_path / "p.parquet")])
    assert values == evaluated_at(run, 6, "eval/clean/loss")
    assert set(values) == {
        f"eval/{name}/{metric}" for name in ("clean", "first") for metric in ("accuracy", "loss")
    }
    counts = {
        name: pyarrow.parquet.read_table(tmp_path / f"p.{name}.parquet").num_rows
        for name in ("clean", "first")
    }
    assert counts == {"clean": 23, "first": 7} and not (tmp_path / "p.parquet").exists()
    assert "data        clean: 23 examples; first: a stream" in capsys.readouterr().out

    first = evaluate([str(run), "--sets", "first", "--predictions", str(tmp_path / "q.jsonl")])
    assert first == {name: value for name, value in values.items() if "/first/" in name}
    assert [file.name for file in tmp_path.glob("q*")] == ["q.first.jsonl"]
    with pytest.raises(ConfigError, match="sets: 'frist': no such evaluation set; did you mean 'f"):
        evaluate([str(run), "--sets", "clean,frist"])


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


def test_help_begins_with_what_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        evaluate(["--help"])
    assert "usage: trainer evaluate RUN|MODEL" in capsys.readouterr().out
    assert "evaluate" in cli.COMMANDS
