"""The training config: precedence, strictness, its one-line messages, and reading back what was written."""

from __future__ import annotations

import json
import math
import string
import subprocess
import sys
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainer.config import annotations as kinds
from trainer.config.annotations import About
from trainer.config.dump import to_yaml
from trainer.config.load import Loaded, check_settings, load_config
from trainer.config.train_config import TrainConfig, every_steps
from trainer.config.validate import annotations_of
from trainer.errors import ConfigError

KEYS = sorted(annotations_of(TrainConfig))
ROOT = Path(__file__).parents[1]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that messages show short paths."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def problems(*argv: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        load_config(argv)
    return str(caught.value).splitlines()


def places(loaded: Loaded) -> dict[str, str]:
    return {key: origin.place for key, origin in loaded.origins.items()}


def load(*argv: str) -> TrainConfig:
    return load_config(["--task", "a:B", "--max_steps", "10", *argv]).config


# Where values come from


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
        (["--mixed-precision=bf16", "--log-every", "3"], {"mixed_precision": "bf16", "log_every": 3}),
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
        ["--task=a:B", "--epochs=1", "--accel_config", "ddp.yaml", "--deepspeed_config", "ds.json", "--local_rank=1"]
    )
    assert (loaded.accel_config, loaded.deepspeed) == ("ddp.yaml", "ds.json")
    assert places(loaded) == {"task": "command line", "epochs": "command line"}
    assert load_config(["--task=a:B", "--epochs=1", "--local_rank", "1"]).config == loaded.config


def test_dotted_keys_change_parts_of_task_settings(here: Path) -> None:
    Path("train.yaml").write_text("task: a:B\nepochs: 1\ntask_settings:\n  width: 4\n  deep: {x: 1, y: [1, 2]}\n")
    argv = ["--config=train.yaml", "--task_settings.width", "64", "task_settings.deep.x=7"]
    loaded = load_config(argv)
    assert loaded.config.task_settings == {"width": 64, "deep": {"x": 7, "y": [1, 2]}}
    assert places(loaded)["task_settings.width"] == places(loaded)["task_settings.deep.x"] == "command line"
    assert places(loaded)["task_settings.deep.y"] == "train.yaml:5"
    whole = load_config(["--config=train.yaml", "--task_settings", "{width: 5}"])
    assert whole.config.task_settings == {"width": 5}
    assert [key for key in whole.origins if key.startswith("task_settings")] == ["task_settings"]


def test_json_and_yaml_give_the_same_config(here: Path) -> None:
    values = {"task": "a:B", "epochs": 2, "lr": 1e-4, "betas": [0.9, 0.95], "task_settings": {"names": ["x"]}}
    Path("train.json").write_text(json.dumps(values))
    Path("train.yaml").write_text("task: a:B\nepochs: 2\nlr: 1e-4\nbetas: [0.9, 0.95]\ntask_settings:\n  names: [x]\n")
    assert load_config(["--config=train.json"]).config == load_config(["--config=train.yaml"]).config


# What is wrong is said in one line


@pytest.mark.parametrize(
    ("key", "value", "rule"),
    [
        ("epohs", 3, "unknown key; did you mean 'epochs'?"),
        ("learning_rate", 0.1, "unknown key; did you mean 'lr'?"),
        ("gradient_accumulation_steps", 2, "unknown key; did you mean 'accumulation_steps'?"),
        ("per_device_train_batch_size", 2, "unknown key; did you mean 'micro_batch_size'?"),
        ("warmup_ratio", 0.1, "unknown key; did you mean 'warmup_fraction'?"),
        ("evaluation_plan", 2, "unknown key; --help lists all keys"),
        ("micro_batch_size", 0, "must be at least 1"),
        ("micro_batch_size", 2.5, "must be a whole number"),
        ("micro_batch_size", 10.0, "must be a whole number; write 10"),
        ("micro_batch_size", True, "must be a whole number"),
        ("micro_batch_size", None, "must be a whole number, not null"),
        ("accumulation_steps", "many", "must be a whole number or null"),
        ("accumulation_steps", [1], "must be a whole number or null"),
        ("workers", -1, "must be at least 0"),
        ("seed", 2**32, "must be at least 0 and at most 4294967295"),
        ("lr", -1, "must be greater than 0"),
        ("lr", 0.0, "must be greater than 0"),
        ("lr", "fast", "must be a number"),
        ("lr", False, "must be a number"),
        ("max_grad_norm", -0.1, "must be at least 0"),
        ("ema_decay", 1, "must be greater than 0 and less than 1"),
        ("momentum", 1.0, "must be at least 0 and less than 1"),
        ("final_lr_ratio", 1.5, "must be at least 0 and at most 1"),
        ("betas", [0.9], "must be a list of 2 values"),
        ("betas", 0.9, "must be a list such as [1, 2]"),
        ("drop_last", 1, "must be true or false"),
        ("optimizer", "adamW", "must be one of 'adamw', 'adam', 'sgd' or null; did you mean 'adamw'?"),
        ("optimizer", "lamb", "must be one of 'adamw', 'adam', 'sgd' or null"),
        ("best_mode", "lower", "must be one of 'min', 'max'"),
        ("eval_every", "weekly", "must be steps such as 100, or epochs such as '1 epoch' or null"),
        ("save_every", "0 epochs", "must be steps such as 100, or epochs such as '1 epoch' or null"),
        ("save_every", 0, "must be at least 1"),
        ("task_settings", 3, "must be a mapping"),
        ("output_dir", "", "must not be empty"),
        ("best_metric", "eval/loss", "needs eval_every: steps such as 100, or epochs such as '1 epoch'"),
        ("early_stop_patience", 2, "needs best_metric, the value that has to get better"),
        ("lr_scaling", "sqrt", "needs reference_batch_size, the global batch that lr belongs to"),
        ("reference_batch_size", 8, "has no effect without lr_scaling: linear or sqrt"),
        ("momentum", 0.5, "has no effect on optimizer adamw; remove it, or set optimizer: sgd"),
        ("momentum", 0.9, "has no effect on optimizer adamw; remove it, or set optimizer: sgd"),
        ("global_batch_size", 12, "must be a multiple of micro_batch_size 8"),
    ],
)
def test_a_mistake_is_told_alike_from_yaml_json_and_the_command_line(
    here: Path, key: str, value: Any, rule: str
) -> None:
    shown = "" if value is None else f" {str(value).lower() if isinstance(value, bool) else repr(value)}:"
    text = json.dumps(value)
    Path("train.yaml").write_text(f"task: a:B\nmax_steps: 10\n{key}: {text}\n")
    assert problems("--config", "train.yaml") == [f"train.yaml:3: {key}:{shown} {rule}"]
    Path("train.json").write_text(f'{{"task": "a:B",\n "max_steps": 10,\n "{key}": {text}}}')
    assert problems("--config", "train.json") == [f"train.json:3: {key}:{shown} {rule}"]
    typed = value if isinstance(value, str) else text
    if rule.startswith("unknown"):
        shown = f" {typed!r}:"  # how to read it is not known either
    line = problems("--task=a:B", "--max_steps=10", f"--{key}={typed}")
    assert line == [f"command line: {key}:{shown} {rule}"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("task: digits", "train.yaml:1: task: 'digits': must be module:Class, such as digits_cnn:DigitsCNN"),
        ("tsk: a:B", "train.yaml:1: tsk: 'a:B': unknown key; did you mean 'task'?"),
        ("seed: 0", "train.yaml: task: is required: module:Class of the task, such as digits_cnn:DigitsCNN"),
    ],
)
def test_the_task_itself(here: Path, line: str, message: str) -> None:
    Path("train.yaml").write_text(f"{line}\nepochs: 1\n")
    assert problems("--config=train.yaml") == [message]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "mixed_precision: no",
            "mixed_precision: false: must be one of 'no', 'bf16', 'fp16' or null; "
            "write 'no' in quotes, for YAML reads a bare no as false",
        ),
        ("seed: '3'", "seed: '3': must be a whole number; remove the quotes"),
        ("output_dir: 2024", "output_dir: 2024: must be text; put it in quotes"),
        ("betas: [0.9, x]", "betas.1: 'x': must be a number"),
        ("betas: [0.9, 1.0]", "betas.1: 1.0: must be at least 0 and less than 1"),
        ("lr: .nan", "lr: nan: must be a finite number"),
        ("lr: 1e999", "lr: inf: must be a finite number"),
        (f"lr: 1{'0' * 400}", f"lr: 1{'0' * 76}...: must be a finite number"),
        ("weight_decay: .inf", "weight_decay: inf: must be a finite number"),
        ("task_settings: {1: 2}", "task_settings: 1: keys must be text; put it in quotes"),
        ("task_settings: {a: [.nan]}", "task_settings.a.0: nan: must be a finite number"),
        ("save_every: 2.5", "save_every: 2.5: must be steps such as 100, or epochs such as '1 epoch' or null"),
    ],
)
def test_what_yaml_makes_of_values(here: Path, line: str, message: str) -> None:
    Path("train.yaml").write_text(f"task: a:B\nepochs: 1\n{line}\n")
    assert problems("--config=train.yaml") == [f"train.yaml:3: {message}"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "max_steps: 010",
            "max_steps: 010: YAML takes a leading zero for octal; write 10, or '010' in quotes if it is text",
        ),
        ("seed: -08", "seed: -08: YAML takes a leading zero for octal; write 8, or '-08' in quotes if it is text"),
        (
            "output_dir: 1:30",
            "output_dir: 1:30: YAML takes it for a number to the base 60; write '1:30' in quotes if it is text",
        ),
        (
            "betas: [1:30.5]",
            "betas.0: 1:30.5: YAML takes it for a number to the base 60; write '1:30.5' in quotes if it is text",
        ),
    ],
)
def test_numbers_that_yaml_reads_as_others_are_refused(here: Path, line: str, message: str) -> None:
    Path("train.yaml").write_text(f"task: a:B\nepochs: 1\n{line}\n")
    assert problems("--config=train.yaml") == [f"train.yaml:3: {message}"]


def test_numbers_and_texts_that_only_look_odd(here: Path) -> None:
    Path("train.yaml").write_text(
        "task: a:B\nepochs: 1_000\noutput_dir: '010'\nlr: 1e-3\neps: .5\nweight_decay: 00.5\n"
        "task_settings: {a: 10.0.0.1, b: host:29500, c: '1:30', d: 0x1F, e: 2024-01-01T10:30:00, f: 0}\n"
    )
    config = load_config(["--config=train.yaml"]).config
    assert (config.epochs, config.output_dir, config.lr, config.eps, config.weight_decay) == (
        1000,
        "010",
        1e-3,
        0.5,
        0.5,
    )
    settings = config.task_settings
    assert [settings[key] for key in "abcdf"] == ["10.0.0.1", "host:29500", "1:30", 31, 0]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (
            '{"a": ' + "1" * 5000 + "}",
            "not valid JSON: Exceeds the limit (4300 digits) for integer string conversion",
        ),
        ('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}", "not valid JSON: nested too deeply"),
        ('{"a": ' + "[" * 400 + "]" * 400 + "}", "nested too deeply"),
    ],
    ids=["5000 digits", "100000 levels", "400 levels"],
)
def test_absurd_json_is_one_line(here: Path, text: str, rule: str) -> None:
    Path("train.json").write_text(text)
    [line] = problems("--config=train.json")
    assert line.startswith(f"train.json: {rule}")


def test_paths_of_the_home_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here))
    Path("train.yaml").write_text("task: a:B\nepochs: 1\noutput_dir: ~/runs\nweights: ~/model\n")
    loaded = load_config(["--config=~/train.yaml", "--resume=~/run", "--accel_config=~/a.yaml"])
    config = loaded.config
    assert (config.output_dir, config.weights, config.resume) == (f"{here}/runs", f"{here}/model", f"{here}/run")
    assert loaded.accel_config == f"{here}/a.yaml"
    assert TrainConfig(task="a:B", epochs=1, output_dir="~/x").output_dir == f"{here}/x", "in code as well"
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
        (["--lr.x=3"], "lr: {'x': '3'}: must be a number"),
        (["--lr", "2024-13-45"], "lr: '2024-13-45': must be a number"),
        (["--max_steps", "010"], "max_steps: '010': must be a whole number or null; write 10"),
        (["--max_steps=1:30"], "max_steps: '1:30': must be a whole number or null"),
        (["-lr=3"], "'-lr=3': settings are written --key value or key=value"),
        (
            ["train.yaml"],
            "'train.yaml': settings are written --key value or key=value; a file is given as --config train.yaml",
        ),
    ],
)
def test_mistakes_of_the_command_line(argv: list[str], message: str) -> None:
    assert problems("--task=a:B", "--epochs=1", *argv) == [f"command line: {message}"]


def test_neither_epochs_nor_steps(here: Path) -> None:
    Path("train.yaml").write_text("task: a:B\n")
    assert problems("--config=train.yaml") == ["train.yaml: epochs: epochs or max_steps is required"]


@pytest.mark.parametrize("key", ["betas", "eps"])
def test_sgd_has_no_use_for_the_settings_of_adam(key: str) -> None:
    value = {"betas": "[0.9, 0.999]", "eps": "1e-8"}[key]
    told = problems("--task=a:B", "--epochs=1", "--optimizer=sgd", f"--{key}={value}")
    assert [line.partition(": has")[2] for line in told] == [" no effect on optimizer sgd; remove it"]
    assert load("--optimizer=sgd", "--momentum=0.8").momentum == 0.8


def test_the_best_model_is_chosen_by_an_evaluation_value() -> None:
    argv = ["--task=a:B", "--epochs=1", "--eval_every=5", "--early_stop_patience=2"]
    rule = "must be an evaluation value, such as eval/loss"
    assert problems(*argv, "--best_metric=loss") == [f"command line: best_metric: 'loss': {rule}"]
    assert load_config([*argv, "--best_metric=eval/loss"]).config.early_stop_patience == 2


def test_the_batch_is_a_product() -> None:
    product = ["--task=a:B", "--epochs=1", "--micro_batch_size=4", "--accumulation_steps=3"]
    rule = "must be a multiple of micro_batch_size 4 x accumulation_steps 3 = 12"
    assert problems(*product, "--global_batch_size=18") == [f"command line: global_batch_size: 18: {rule}"]
    assert load_config([*product, "--global_batch_size=24"]).config.global_batch_size == 24


def test_all_problems_are_told_at_once_and_none_twice(here: Path) -> None:
    Path("train.yaml").write_text("tsk: a:B\nepohs: 3\nlr: -1\nwarmup_steps: 5\nmax_steps: 2\n")
    assert problems("--config=train.yaml", "--sead", "3", "--lr", "1") == [
        "train.yaml:1: tsk: 'a:B': unknown key; did you mean 'task'?",
        "train.yaml:2: epohs: 3: unknown key; did you mean 'epochs'?",
        "train.yaml:3: lr: -1: must be greater than 0",
        "command line: sead: '3': unknown key; did you mean 'seed'?",
    ]


def test_a_missing_file_comes_with_the_other_problems(here: Path) -> None:
    assert problems("--config=none.yaml", "--seed") == [
        "none.yaml: the training config does not exist",
        "command line: seed: needs a value: --seed VALUE",
    ]


def test_a_config_made_in_code_is_held_to_the_same_rules() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainConfig(task="a", epochs=0, betas=(0.9, 2.0), momentum=0.5, best_metric="eval/loss")
    assert str(caught.value).splitlines() == [
        "TrainConfig: epochs: 0: must be at least 1",
        "TrainConfig: betas.1: 2.0: must be at least 0 and less than 1",
        "TrainConfig: task: 'a': must be module:Class, such as digits_cnn:DigitsCNN",
        "TrainConfig: momentum: 0.5: has no effect on optimizer adamw; remove it, or set optimizer: sgd",
        "TrainConfig: best_metric: 'eval/loss': needs eval_every: steps such as 100, or epochs such as '1 epoch'",
    ]


@st.composite
def typos(draw: st.DrawFn) -> tuple[str, str]:
    """A key, and the key with one letter dropped, changed or added."""
    key = draw(st.sampled_from(KEYS))
    at, letter = draw(st.integers(0, len(key) - 1)), draw(st.sampled_from(string.ascii_letters + string.digits + "_"))
    head, tail = key[:at], key[at + 1 :]
    return key, draw(st.sampled_from([head + tail, head + letter + tail, head + letter + key[at:], key + letter]))


@given(typos())
def test_any_one_letter_typo_is_answered_with_the_right_key(typo: tuple[str, str]) -> None:
    key, typed = typo
    assume(typed != key and not typed[0].isdigit())
    lines = problems(f"--{typed}=1")
    assert f"command line: {typed}: '1': unknown key; did you mean {key!r}?" in lines


# Writing it down, reading it back

words = st.text(max_size=12)
plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | words
nested = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3), max_leaves=8
)
batch = st.integers(1, 64)
interval = st.none() | st.integers(1, 10**6) | st.integers(1, 99).map(lambda n: f"{n} epochs") | st.just("1 epoch")
share = st.floats(0, 1, exclude_max=True)


@st.composite
def configs(draw: st.DrawFn) -> TrainConfig:
    values: dict[str, Any] = draw(
        st.fixed_dictionaries(
            {"task": st.sampled_from(["a:B", "pkg.module:Task"])},
            optional={
                "task_settings": st.dictionaries(words, nested, max_size=4),
                "output_dir": st.text(min_size=1),
                "overwrite": st.booleans(),
                "seed": st.integers(0, 2**32 - 1),
                "micro_batch_size": batch,
                "accumulation_steps": st.none() | batch,
                "evaluation_batch_size": st.none() | batch,
                "optimizer": st.sampled_from([None, "adamw", "adam", "sgd"]),
                "lr": st.floats(0, 1e6, exclude_min=True),
                "schedule": st.sampled_from([None, "constant", "linear", "cosine"]),
                "max_grad_norm": st.none() | st.floats(0, 1e6),
                "mixed_precision": st.sampled_from([None, "no", "bf16", "fp16"]),
                "eval_every": interval,
                "save_every": interval,
            },
        )
    )
    if draw(st.booleans()):
        values["epochs"] = draw(batch)
    else:
        values |= {"max_steps": 100, "warmup_steps": draw(st.integers(0, 100))}
    if draw(st.booleans()):
        window = values.get("micro_batch_size", 8) * (values.get("accumulation_steps") or 1)
        values["global_batch_size"] = window * draw(batch)
    if draw(st.booleans()):
        values |= {"lr_scaling": draw(st.sampled_from(["linear", "sqrt"])), "reference_batch_size": draw(batch)}
    if values.get("eval_every") and draw(st.booleans()):
        values |= {"best_metric": draw(st.text(min_size=1).map("eval/{}".format).filter(lambda name: "\n" not in name))}
    if values.get("optimizer") == "sgd":
        values["momentum"] = draw(share)
    else:
        values["betas"] = (draw(share), draw(share))
    return TrainConfig(**values)


@given(configs())
def test_what_is_written_reads_back_equal(tmp_path_factory: pytest.TempPathFactory, config: TrainConfig) -> None:
    path = tmp_path_factory.getbasetemp() / "written.yaml"
    path.write_text(to_yaml(config), encoding="utf-8")
    again = load_config(["--config", str(path)]).config
    assert again == config
    assert to_yaml(again) == to_yaml(config)


def test_print_config_names_the_home_of_each_value(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.yaml").write_text("task: a:B\nepochs: 2\ntask_settings:\n  width: 4\n")
    argv = ["--config=train.yaml", "--mixed_precision=no", "--task_settings.depth=2"]
    with pytest.raises(SystemExit) as leaving:
        load_config([*argv, "--print_config"])
    assert leaving.value.code == 0
    printed = capsys.readouterr().out
    shown = {line.partition("#")[0].strip(): line.partition("#")[2].strip() for line in printed.splitlines()}
    assert shown["epochs: 2"] == "train.yaml:2"
    assert shown["width: 4"] == "train.yaml:4"
    assert shown["depth: 2"] == shown["mixed_precision: 'no'"] == "command line"
    assert shown["lr: 0.001"] == "default"
    Path("printed.yaml").write_text(printed)
    assert load_config(["--config=printed.yaml"]).config == load_config(argv).config


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_help_shows_every_key_even_beside_mistakes(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as leaving:
        load_config(["--lrr=3", flag])
    assert leaving.value.code == 0
    printed = capsys.readouterr().out
    rows = [line.split()[0] for line in printed.splitlines() if line.startswith("  --")]
    assert set(rows) == {f"--{key}" for key in [*KEYS, "config", "accel_config", "deepspeed", "print_config"]}
    assert all(annotation.__metadata__[0].help in printed for annotation in annotations_of(TrainConfig).values())


def test_a_wrong_key_is_answered_without_torch() -> None:
    code = (
        "import sys; from trainer.config.load import load_config\n"
        "try: load_config(['--lrr', '3'])\n"
        "except ValueError as error: print(error)\n"
        "print(sorted({'torch', 'accelerate', 'transformers', 'deepspeed', 'numpy'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    first, *_, modules = run.stdout.splitlines()
    assert first.startswith("command line: task: is required")
    assert "command line: lrr: '3': unknown key; did you mean 'lr'?" in run.stdout
    assert modules == "[]"


# The settings of a task


@dataclass(frozen=True, kw_only=True)
class Inner:
    rate: Annotated[float, About("dropped share", minimum=0, below=1)] = 0.0
    kind: Literal["relu", "no"] = "relu"


@dataclass(frozen=True, kw_only=True)
class Task:
    registry: ClassVar[dict[str, int]] = {}
    width: Annotated[int, About("channels", minimum=1)]
    name: str = "x"
    sizes: tuple[int, ...] = (1,)
    pair: tuple[int, str] = (1, "a")
    limit: Literal["auto"] | int = "auto"
    words: list[str] = field(default_factory=list)
    shares: list[Annotated[float, About(maximum=1)]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    anything: Any = None
    inner: Inner = field(default_factory=Inner)

    def __post_init__(self) -> None:
        if self.width == 13:
            raise ValueError("13 channels bring bad luck")


class Activation(Enum):
    RELU = "relu"
    GELU = "gelu"


@dataclass(frozen=True, kw_only=True)
class Rich:
    """Fields that ordinary dataclasses have, and defaults that a file could not set."""

    root: Path = Path("data")
    cache: Path | None = None
    tags: frozenset[str] = frozenset({"b", "a"})
    levels: set[int] = field(default_factory=set)
    activation: Activation = Activation.RELU
    others: tuple[Activation, ...] = ()
    limit: float = math.inf
    bound: Annotated[int, About(minimum=0)] = -1
    phase: complex = 1j
    pair: tuple[int, int] = (1, 2)


def rich(text: str, *argv: str) -> tuple[Rich, TrainConfig]:
    """The task, and the config of its run as it is read from the file that the run leaves."""
    Path("train.yaml").write_text(f"task: a:B\nepochs: 1\ntask_settings: {text}\n")
    loaded = load_config(["--config=train.yaml", *argv])
    task = check_settings(Rich, loaded.config.task_settings, loaded)
    left = replace(loaded.config, task_settings=kinds.plain(task))
    Path("config.yaml").write_text(to_yaml(left))
    again = load_config(["--config=config.yaml"])
    assert again.config == left
    assert check_settings(Rich, again.config.task_settings, again) == task
    assert json.loads(json.dumps(left.task_settings, allow_nan=False)) == left.task_settings, "checkpoints hold it"
    return task, left


def test_fields_of_ordinary_dataclasses(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, left = rich("{}")
    assert task == Rich()
    assert left.task_settings == {
        "root": "data", "cache": None, "tags": ["a", "b"], "levels": [], "activation": "RELU", "others": [],
        "limit": "inf", "bound": -1, "phase": "1j", "pair": [1, 2],
    }  # fmt: skip
    monkeypatch.setenv("HOME", "/home/me")
    text = "{root: ~/x, cache: y, tags: [c, c], levels: [3, 1], activation: GELU, others: [RELU, GELU], limit: 2}"
    task, _ = rich(text, "--task_settings.cache=2024")
    assert task == Rich(
        root=Path("/home/me/x"),
        cache=Path("2024"),
        tags=frozenset({"c"}),
        levels={1, 3},
        activation=Activation.GELU,
        others=(Activation.RELU, Activation.GELU),
        limit=2.0,
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{root: 2024}", "task_settings.root: 2024: must be a path; put it in quotes"),
        ("{tags: a}", "task_settings.tags: 'a': must be a list such as [1, 2]"),
        ("{levels: [[1]]}", "task_settings.levels.0: [1]: must be a whole number"),
        ("{activation: relu}", "task_settings.activation: 'relu': must be one of 'RELU', 'GELU'; did you mean 'RELU'?"),
        (
            "{activation: GELLU}",
            "task_settings.activation: 'GELLU': must be one of 'RELU', 'GELU'; did you mean 'GELU'?",
        ),
        ("{bound: -2}", "task_settings.bound: -2: must be at least 0"),
        ("{limit: .nan}", "task_settings.limit: nan: must be a finite number"),
        (
            "{phase: 2j}",
            "task_settings.phase: '2j': must be set in code: a file cannot give the type <class 'complex'>",
        ),
    ],
)
def test_wrong_values_of_such_fields(here: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rich(text)
    assert str(caught.value) == f"train.yaml:3: {message}"


def settings(text: str, *argv: str) -> Task:
    Path("train.yaml").write_text(f"task: a:B\nepochs: 1\ntask_settings:\n{text}\n")
    loaded = load_config(["--config=train.yaml", *argv])
    return check_settings(Task, loaded.config.task_settings, loaded)


def test_settings_of_every_type(here: Path) -> None:
    text = (
        "  width: 4\n  name: y\n  sizes: [1, 2, 3]\n  pair: [2, b]\n  limit: 7\n  words: [a]\n"
        "  counts: {a: 1}\n  anything: {b: [1]}\n  inner: {rate: 0}"
    )
    expected = Task(
        width=4,
        name="y",
        sizes=(1, 2, 3),
        pair=(2, "b"),
        limit=7,
        words=["a"],
        counts={"a": 1},
        anything={"b": [1]},
        inner=Inner(rate=0.0),
    )
    assert settings(text) == expected


def test_the_type_of_a_setting_decides_how_its_argument_is_read(here: Path) -> None:
    task = settings(
        "  width: 4\n  inner: {rate: 0.5}",
        "--task_settings.name=007",
        "--task_settings.inner.kind=no",
        "--task_settings.limit",
        "5",
    )
    assert task == Task(width=4, name="007", limit=5, inner=Inner(rate=0.5, kind="no"))
    assert settings("  width: 4", "--task_settings.limit=auto").limit == "auto"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("  widht: 4", "4: task_settings.widht: 4: unknown key; did you mean 'width'?"),
        ("  name: y", "3: task_settings.width: is required: channels"),
        ("  width: 0", "4: task_settings.width: 0: must be at least 1"),
        ("  width: 13", "3: task_settings: 13 channels bring bad luck"),
        ("  width: 1\n  name: no", "5: task_settings.name: false: must be text; put it in quotes"),
        ("  width: 1\n  sizes: [1, 2.5]", "5: task_settings.sizes.1: 2.5: must be a whole number"),
        ("  width: 1\n  pair: [1]", "5: task_settings.pair: [1]: must be a list of 2 values"),
        ("  width: 1\n  pair: [1, 2]", "5: task_settings.pair.1: 2: must be text; put it in quotes"),
        ("  width: 1\n  shares: [1, 2]", "5: task_settings.shares.1: 2: must be at most 1"),
        ("  width: 1\n  words: a", "5: task_settings.words: 'a': must be a list such as [1, 2]"),
        ("  width: 1\n  counts: {a: b}", "5: task_settings.counts.a: 'b': must be a whole number"),
        ("  width: 1\n  inner: 3", "5: task_settings.inner: 3: must be a mapping"),
        ("  width: 1\n  inner:\n    rate: 1", "6: task_settings.inner.rate: 1: must be at least 0 and less than 1"),
        ("  width: 1\n  inner:\n    rat: 1", "6: task_settings.inner.rat: 1: unknown key; did you mean 'rate'?"),
        (
            "  width: 1\n  registry: {}",
            "5: task_settings.registry: {}: unknown key; "
            "known: anything, counts, inner, limit, name, pair, shares, sizes, width, words",
        ),
    ],
)
def test_wrong_settings(here: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(text)
    assert str(caught.value) == f"train.yaml:{message}"


def test_wrong_settings_of_the_command_line(here: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        settings(
            "  width: 1", "--task_settings.inner.rate=x", "--task_settings.nme", "y", "--task_settings.width", "3.0"
        )
    assert str(caught.value).splitlines() == [
        "command line: task_settings.width: 3.0: must be a whole number; write 3",
        "command line: task_settings.inner.rate: 'x': must be a number",
        "command line: task_settings.nme: 'y': unknown key; did you mean 'name'?",
    ]


def message_of(cls: type, given: dict[str, Any]) -> str:
    loaded = Loaded(config=TrainConfig(task="a:B", epochs=1, task_settings=given), origins={})
    with pytest.raises(ConfigError) as caught:
        check_settings(cls, given, loaded)
    return str(caught.value)


def test_mistakes_of_whoever_wrote_the_task() -> None:
    class Undecorated(Task):
        depth: int = 3

    @dataclass(frozen=True, kw_only=True)
    class Unresolved:
        path: NowhereToBeFound  # type: ignore[name-defined]  # noqa: F821

    @dataclass(frozen=True, kw_only=True)
    class Unreadable:
        scale: complex = 1j

    @dataclass(frozen=True, kw_only=True)
    class Bare:
        pass

    home = f"{__name__}:test_mistakes_of_whoever_wrote_the_task.<locals>"
    assert message_of(Undecorated, {"width": 1}) == (
        f"{home}.Undecorated: put @dataclass(frozen=True, kw_only=True) above the class: depth cannot be set without"
    )
    assert message_of(Unresolved, {"path": "x"}) == (
        f"{home}.Unresolved: annotations must exist at run time, outside of TYPE_CHECKING: "
        "name 'NowhereToBeFound' is not defined"
    )
    assert message_of(Unreadable, {"scale": 2}) == (
        "TrainConfig: task_settings.scale: 2: must be set in code: a file cannot give the type <class 'complex'>"
    )
    assert message_of(Bare, {"x": 1}) == "TrainConfig: task_settings.x: 1: unknown key; there are no settings here"


@pytest.mark.parametrize(("value", "steps"), [(None, None), (7, 7), ("1 epoch", 30), ("3 epochs", 90)])
def test_every_steps(value: int | str | None, steps: int | None) -> None:
    assert every_steps(value, 30) == steps


def test_a_config_is_frozen_and_replaced_with_the_same_checks() -> None:
    config = TrainConfig(task="a:B", epochs=1)
    assert replace(config, accumulation_steps=4).accumulation_steps == 4
    with pytest.raises(ConfigError, match="accumulation_steps: 0: must be at least 1"):
        replace(config, accumulation_steps=0)
