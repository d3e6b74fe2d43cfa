"""The command line of a training: its mistakes, its paths, its help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from config_loading import KEYS, load, problems
from launchers import ROOT

from trainer.config.load import load_config
from trainer.config.train_config import TrainConfig
from trainer.config.validate import annotations_of, description_of
from trainer.errors import ConfigError


def test_paths_of_the_home_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    Path("train.yaml").write_text("task: a:B\nepochs: 1\noutput_dir: ~/runs\nweights: ~/model\n")
    loaded = load_config(["--config=~/train.yaml", "--resume=~/run", "--accel_config=~/a.yaml"])
    config = loaded.config
    assert (config.output_dir, config.weights, config.resume) == (
        f"{here}/runs",
        f"{here}/model",
        f"{here}/run",
    )
    assert loaded.accel_config == f"{here}/a.yaml"
    assert TrainConfig(task="a:B", epochs=1, output_dir="~/x").output_dir == f"{here}/x", (
        "in code as well"
    )
    assert load("--output_dir=a~b").output_dir == "a~b"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--seed"], "seed: needs a value: --seed VALUE"),
        (["--seed", "--overwrite"], "seed: needs a value: --seed VALUE"),
        (["--config"], "config: needs a value: --config VALUE"),
        (["--ovrwrite"], "ovrwrite: 'true': unknown key; did you mean 'overwrite'?"),
        (["--overwrite", "maybe"], "overwrite: 'maybe': must be true or false"),
        (["--seed=1", "seed=2"], "seed: is given twice, as '1' and as '2'; keep one"),
        (
            ["--task_settings={a: 1}", "--task_settings.a=2"],
            "task_settings: is given as a whole and in part, as task_settings.a; keep one",
        ),
        (["--lr.x=3"], "lr: {'x': 3}: must be a number"),
        (["--lr", "2024-13-45"], "lr: '2024-13-45': must be a number"),
        (["--max_steps", "010"], "max_steps: '010': must be a whole number"),
        (["--max_steps=1:30"], "max_steps: '1:30': must be a whole number"),
        (["-lr=3"], "'-lr=3': settings are written --key value or key=value"),
        (["train.txt"], "'train.txt': settings are written --key value or key=value"),
    ],
)
def test_mistakes_of_the_command_line(argv: list[str], message: str) -> None:
    assert problems("--task=a:B", "--epochs=1", *argv) == [f"command line: {message}"]


def test_the_first_word_may_be_the_config(here: Path) -> None:
    Path("train.yml").write_text("task: a:B\nepochs: 1\n")
    loaded = load_config(["train.yml", "--epochs=3", "seed=4"])
    assert (loaded.config_file, loaded.config.epochs, loaded.config.seed) == ("train.yml", 3, 4)
    with pytest.raises(ConfigError) as wrong:
        load_config(["--config=train.yml", "other.yml"])
    assert (
        str(wrong.value)
        == "command line: 'other.yml': settings are written --key value or key=value"
    )
    with pytest.raises(ConfigError) as missing:
        load_config(["other.yml"])
    assert str(missing.value) == "other.yml: the training config does not exist"


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_shows_every_key_even_beside_mistakes(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as leaving:
        load_config(["--lrr=3", flag])
    assert leaving.value.code == 0
    printed = capsys.readouterr().out
    rows = [line.split()[0] for line in printed.splitlines() if line.startswith("  --")]
    assert set(rows) == {
        f"--{key}" for key in [*KEYS, "config", "accel_config", "deepspeed", "print_config"]
    }
    assert all(
        description_of(annotation) in printed for annotation in annotations_of(TrainConfig).values()
    )


def test_a_wrong_key_is_answered_without_torch() -> None:
    code = (
        "import sys; from trainer.config.load import load_config\n"
        "try: load_config(['--lrr', '3'])\n"
        "except ValueError as error: print(error)\n"
        "print(sorted({'torch', 'accelerate', 'transformers', 'deepspeed', 'numpy'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    *told, modules = run.stdout.splitlines()
    assert told[0] == "command line: lrr: '3': unknown key; did you mean 'lr'?"
    assert told[1].startswith("command line: task: is required")
    assert modules == "[]"
