"""The command line of a training: every spelling, its mistakes, where values come from, its help."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from config_loading import KEYS, load, problems
from launchers import ROOT

from trainer.config.documents import parse_scalar
from trainer.config.load import Loaded, load_config
from trainer.config.train_config import TrainConfig


def places(loaded: Loaded) -> dict[str, str]:
    return {key: origin.place for key, origin in loaded.origins.items()}


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(here: Path) -> None:
    Path("train.yaml").write_text("task: digits:Digits\nepochs: 3\nlr: fast\nseed: 1\n")
    loaded = load_config(["--config", "train.yaml", "--lr", "1e-2"])
    assert loaded.config == TrainConfig(task="digits:Digits", epochs=3, lr=0.01, seed=1)
    assert places(loaded) == {
        "task": "train.yaml:1",
        "epochs": "train.yaml:2",
        "lr": "command line",
        "seed": "train.yaml:4",
    }


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--lr", "3e-4"], {"lr": 3e-4}),
        (["lr=3e-4"], {"lr": 3e-4}),
        (["--lr", "1", "--lr=0.0003"], {"lr": 3e-4}),
        (["--overwrite", "seed=4"], {"overwrite": True, "seed": 4}),
        (["--overwrite", "--seed", "4"], {"overwrite": True, "seed": 4}),
        (["--overwrite", "false"], {"overwrite": False}),
        (["--mixed-precision=bf16", "--log-every", "3"], {"mixed_precision": "bf16", "log_every": 3}),
        (["--mixed_precision", "null"], {"mixed_precision": None}),
        (["--output_dir", "no"], {"output_dir": "no"}),
        (["--output_dir=a=b"], {"output_dir": "a=b"}),
        (["--betas", "[0.8, 0.9]"], {"betas": (0.8, 0.9)}),
        (["--local_rank=1"], {}),
    ],
)  # fmt: skip
def test_values_of_the_command_line(argv: list[str], expected: dict[str, Any]) -> None:
    config = load(*argv)
    assert {key: getattr(config, key) for key in expected} == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1e-3", 1e-3), ("no", False), ("null", None), ("[1, a]", [1, "a"]), ("'007'", "007")]
    + [(text, text) for text in ("a #b", " a", "[", "010", "1:30", "2024-01-01", "!!str 5", "{1: 2}")],
)  # fmt: skip
def test_what_is_typed_is_read_as_yaml_unless_that_would_change_text(text: str, value: Any) -> None:
    assert parse_scalar(text) == value and type(parse_scalar(text)) is type(value)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--seed"], "seed: needs a value: --seed VALUE"),
        (["--config"], "config: needs a value: --config VALUE"),
        (["--ovrwrite"], "ovrwrite: true: unknown key; did you mean 'overwrite'?"),
        (["--learning_rate", "1"], "learning_rate: 1: unknown key; did you mean 'lr'?"),
        (["--lr.x=3"], "lr: {'x': 3}: must be a valid number"),
        (["--lr", "2024-13-45"], "lr: '2024-13-45': must be a valid number"),
        (["--task=mytask.Digits"], "task: 'mytask.Digits': must be module:Class, such as digits_cnn:DigitsCNN"),
        (["--best_metric=loss"], "best_metric: 'loss': must have the form of the key: keep the best model by this, such as eval/loss"),
    ],
)  # fmt: skip
def test_mistakes_of_the_command_line(argv: list[str], message: str) -> None:
    assert problems("--task=a:B", "--epochs=1", *argv) == [f"command line: {message}"]


def test_dotted_keys_change_parts_of_task_settings(here: Path) -> None:
    Path("train.yaml").write_text(
        "task: a:B\nepochs: 1\ntask_settings:\n  width: 4\n  deep: {x: 1, y: [1, 2]}\n"
    )
    argv = ["--config=train.yaml", "--task_settings.width", "64", "task_settings.deep.x=7"]
    loaded = load_config(argv)
    assert loaded.config.task_settings == {"width": 64, "deep": {"x": 7, "y": [1, 2]}}
    at = places(loaded)
    assert at["task_settings.width"] == at["task_settings.deep.x"] == "command line"
    assert at["task_settings.deep.y"] == "train.yaml:5"
    whole = load_config(["--config=train.yaml", "--task_settings", "{width: 5}"])
    assert whole.config.task_settings == {"width": 5}
    assert [key for key in whole.origins if key.startswith("task_settings")] == ["task_settings"]


def test_files_and_paths_of_the_home_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    Path("train.yaml").write_text("task: a:B\nepochs: 1\noutput_dir: ~/runs\nweights: ~/model\n")
    Path("a.yaml").write_text("distributed_type: FSDP\n")
    loaded = load_config(["~/train.yaml", "--resume=~/run", "--accel_config=~/a.yaml"])
    config = loaded.config
    paths = [config.output_dir, config.weights, config.resume]
    assert paths == [f"{here}/runs", f"{here}/model", f"{here}/run"]
    files = (loaded.config_file, loaded.accel_config, loaded.deepspeed)
    assert files == ("~/train.yaml", "~/a.yaml", None)
    assert TrainConfig(task="a:B", epochs=1, output_dir="~/x").output_dir == f"{here}/x"


@pytest.mark.parametrize(("words", "printed"), [([], True), (["false"], False), (["true"], True)])
def test_the_config_is_printed_if_the_flag_says_so(words: list[str], printed: bool) -> None:
    words = ["--task=a:B", "--epochs=1", "--print_config", *words]
    assert load_config(words).is_printed == printed


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
    assert "how lr follows the global batch ['none', 'linear', 'sqrt']" in printed


def test_a_wrong_key_is_answered_without_torch() -> None:
    code = (
        "import sys; from trainer.config.load import load_config\n"
        "try: load_config(['--task', 'a:B', '--lrr', '3'])\n"
        "except ValueError as error: print(error)\n"
        "print(sorted({'torch', 'accelerate', 'transformers', 'deepspeed', 'numpy'} & set(sys.modules)))"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines() == [
        "command line: lrr: 3: unknown key; did you mean 'lr'?",
        "[]",
    ]


FILES = {
    "train.yaml": "task: a:B\nepochs: 1\n",
    "other.yml": "lr: 1\nepochs: 1\n",
    "fsdp.yaml": "distributed_type: FSDP\nnum_processes: 2\nmixed_precision: bf16\n",
    "zero.json": '{"bf16": {"enabled": true}, "gradient_clipping": 1.0, "optimizer": {}}',
    "site.yml": "site_name: x\nnav: []\n",
    "both.yaml": "task: a:B\nepochs: 1\nnum_processes: 2\n",
}


@pytest.fixture
def files(here: Path) -> None:
    for name, text in FILES.items():
        Path(name).write_text(text)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("fsdp.yaml train.yaml", ("train.yaml", "fsdp.yaml", None)),
        ("--lr 1 train.yaml --overwrite fsdp.yaml", ("train.yaml", "fsdp.yaml", None)),
        ("zero.json --config=train.yaml", ("train.yaml", None, "zero.json")),
        ("--config fsdp.yaml --deepspeed train.yaml", ("train.yaml", "fsdp.yaml", None)),
        ("--task a:B other.yml", ("other.yml", None, None)),
        ("--task a:B --epochs 1 fsdp.yaml", (None, "fsdp.yaml", None)),
    ],
)
def test_files_are_told_apart_by_their_keys(line: str, expected: Any) -> None:
    loaded = load_config(line.split())
    assert (loaded.config_file, loaded.accel_config, loaded.deepspeed) == expected


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("line", "told"),
    [
        (
            "train.yaml other.yml",
            "command line: 'other.yml': is too many: name a training config and a launch file",
        ),
        ("--config train.yaml --config other.yml", "'other.yml': is too many"),
        ("fsdp.yaml zero.json train.yaml", "'zero.json': is too many"),
        ("fsdp.yaml", "command line: config: is missing: name a training config, or --task"),
        ("", "command line: config: is missing: name a training config, or --task"),
        ("site.yml", "'site.yml': has no key of a training config, nor of a launch file"),
        ("-lr=3", "-lr=3: the file cannot be read: No such file or directory"),
        ("--task a:B --overwrite no", "no: the file cannot be read: No such file or directory"),
        ("trian.yaml", "trian.yaml: the file cannot be read: No such file or directory; did you"),
        ("both.yaml", "both.yaml:3: num_processes: 2: unknown key"),
    ],
)
def test_a_file_of_the_wrong_kind_is_one_line(line: str, told: str) -> None:
    [problem] = problems(*line.split())
    assert told in problem
