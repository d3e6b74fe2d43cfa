"""The training config: where its values come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from config_loading import load

from trainer.config.load import Loaded, load_config
from trainer.config.train_config import TrainConfig


def places(loaded: Loaded) -> dict[str, str]:
    return {key: origin.place for key, origin in loaded.origins.items()}


def test_the_command_line_wins_over_the_file_over_the_defaults(here: Path) -> None:
    Path("train.yaml").write_text("task: digits:Digits\nepochs: 3\nlr: 3e-4\nseed: 1\n")
    loaded = load_config(["--config", "train.yaml", "--lr", "1e-2"])
    assert loaded.config == TrainConfig(task="digits:Digits", epochs=3, lr=0.01, seed=1)
    assert places(loaded) == {
        "task": "train.yaml:1",
        "epochs": "train.yaml:2",
        "seed": "train.yaml:4",
        "lr": "command line",
    }


@pytest.mark.parametrize(
    "spelling",
    [["--lr", "3e-4"], ["--lr=3e-4"], ["lr=3e-4"], ["--lr", "0.0003", "--lr=0.0003"]],
)
def test_every_spelling_of_an_argument(spelling: list[str]) -> None:
    assert load(*spelling).lr == 3e-4


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--overwrite"], {"overwrite": True}),
        (["--overwrite", "seed=4"], {"overwrite": True, "seed": 4}),
        (["--overwrite", "--seed", "4"], {"overwrite": True, "seed": 4}),
        (["--overwrite", "false"], {"overwrite": False}),
        (["--overwrite=true"], {"overwrite": True}),
        (["--mixed_precision", "no"], {"mixed_precision": "no"}),
        (
            ["--mixed-precision=bf16", "--log-every", "3"],
            {"mixed_precision": "bf16", "log_every": 3},
        ),
        (["--mixed_precision", "null"], {"mixed_precision": None}),
        (["--output_dir", "2024"], {"output_dir": "2024"}),
        (["--output_dir", "no"], {"output_dir": "no"}),
        (["--output_dir=a=b"], {"output_dir": "a=b"}),
        (["--eval_every", "20"], {"eval_every": 20}),
        (["--eval_every", "2 epochs"], {"eval_every": "2 epochs"}),
        (["--betas", "[0.8, 0.9]"], {"betas": (0.8, 0.9)}),
        (["--max_grad_norm", "0"], {"max_grad_norm": 0.0}),
    ],
)
def test_values_of_the_command_line(argv: list[str], expected: dict[str, Any]) -> None:
    config = load(*argv)
    assert {key: getattr(config, key) for key in expected} == expected


def test_a_config_can_stand_on_the_command_line_alone_with_the_files_that_say_how_to_run() -> None:
    loaded = load_config(
        [
            "--task=a:B",
            "--epochs=1",
            "--accel_config",
            "ddp.yaml",
            "--deepspeed_config",
            "ds.json",
            "--local_rank=1",
        ]
    )
    assert (loaded.accel_config, loaded.deepspeed) == ("ddp.yaml", "ds.json")
    assert places(loaded) == {"task": "command line", "epochs": "command line"}
    assert load_config(["--task=a:B", "--epochs=1", "--local_rank", "1"]).config == loaded.config


def test_dotted_keys_change_parts_of_task_settings(here: Path) -> None:
    Path("train.yaml").write_text(
        "task: a:B\nepochs: 1\ntask_settings:\n  width: 4\n  deep: {x: 1, y: [1, 2]}\n"
    )
    argv = ["--config=train.yaml", "--task_settings.width", "64", "task_settings.deep.x=7"]
    loaded = load_config(argv)
    assert loaded.config.task_settings == {"width": 64, "deep": {"x": 7, "y": [1, 2]}}
    assert (
        places(loaded)["task_settings.width"]
        == places(loaded)["task_settings.deep.x"]
        == "command line"
    )
    assert places(loaded)["task_settings.deep.y"] == "train.yaml:5"
    whole = load_config(["--config=train.yaml", "--task_settings", "{width: 5}"])
    assert whole.config.task_settings == {"width": 5}
    assert [key for key in whole.origins if key.startswith("task_settings")] == ["task_settings"]


def test_json_and_yaml_give_the_same_config(here: Path) -> None:
    values = {
        "task": "a:B",
        "epochs": 2,
        "lr": 1e-4,
        "betas": [0.9, 0.95],
        "task_settings": {"names": ["x"]},
    }
    Path("train.json").write_text(json.dumps(values))
    Path("train.yaml").write_text(
        "task: a:B\nepochs: 2\nlr: 1e-4\nbetas: [0.9, 0.95]\ntask_settings:\n  names: [x]\n"
    )
    assert (
        load_config(["--config=train.json"]).config == load_config(["--config=train.yaml"]).config
    )
