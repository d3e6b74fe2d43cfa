"""The training config: its one-line messages, all at once."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

import pytest
from config_loading import KEYS, problems
from hypothesis import assume, given
from hypothesis import strategies as st
from launchers import ROOT

from trainer.config.documents import read_table
from trainer.config.load import check_settings, load_config
from trainer.config.train_config import TrainConfig
from trainer.config.validate import annotations_of
from trainer.errors import ConfigError


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
        ("accumulation_steps", "many", "must be a whole number"),
        ("accumulation_steps", [1], "must be a whole number"),
        ("workers", -1, "must be at least 0"),
        ("seed", 2**32, "must be at most 4294967295"),
        ("lr", -1, "must be greater than 0"),
        ("lr", 0.0, "must be greater than 0"),
        ("lr", "fast", "must be a number"),
        ("lr", False, "must be a number"),
        ("max_grad_norm", -0.1, "must be at least 0"),
        ("ema_decay", 1, "must be less than 1"),
        ("momentum", 1.0, "must be less than 1"),
        ("final_lr_ratio", 1.5, "must be at most 1"),
        ("betas", [0.9], "must be a list of 2 values"),
        ("betas", 0.9, "must be a list such as [a, b]"),
        ("trackers", "wandb", "must be a list such as [a, b]"),
        ("drop_last", 1, "must be true or false"),
        ("optimizer", "adamW", "no such optimizer; did you mean 'adamw'?"),
        (
            "optimizer",
            "lamb",
            "no such optimizer; known: a class such as torch.optim.Muon, adam, adamw, sgd",
        ),
        ("best_mode", "lower", "must be one of 'min', 'max'"),
        (
            "eval_every",
            "weekly",
            "must be steps such as 100, or epochs such as '2 epochs' or '1/4 epoch', or null",
        ),
        (
            "save_every",
            "0 epochs",
            "must be steps such as 100, or epochs such as '2 epochs' or '1/4 epoch', or null",
        ),
        ("save_every", 0, "must be at least 1"),
        ("task_settings", 3, "must be a mapping"),
        ("output_dir", "", "must not be empty"),
        ("global_batch_size", 12, "must be a multiple of micro_batch_size 8"),
    ],
)
def test_a_mistake_is_told_alike_from_yaml_json_and_the_command_line(
    here: Path, key: str, value: Any, rule: str
) -> None:
    shown = (
        ""
        if value is None
        else f" {str(value).lower() if isinstance(value, bool) else repr(value)}:"
    )
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
        (
            "task: digits",
            "train.yaml:1: task: 'digits': must be module:Class, such as digits_cnn:DigitsCNN",
        ),
        ("tsk: a:B", "train.yaml:1: tsk: 'a:B': unknown key; did you mean 'task'?"),
        (
            "seed: 0",
            "train.yaml: task: is required: module:Class of the task, such as digits_cnn:DigitsCNN",
        ),
    ],
)
def test_the_task_itself(here: Path, line: str, message: str) -> None:
    Path("train.yaml").write_text(f"{line}\nepochs: 1\n")
    assert problems("--config=train.yaml") == [message]


def test_neither_epochs_nor_steps(here: Path) -> None:
    Path("train.yaml").write_text("task: a:B\n")
    assert problems("--config=train.yaml") == [
        "train.yaml: epochs: epochs or max_steps is required"
    ]


def test_the_best_model_is_chosen_by_an_evaluation_value() -> None:
    argv = ["--task=a:B", "--epochs=1", "--eval_every=5", "--early_stop_patience=2"]
    rule = "must be an evaluation value, such as eval/loss"
    assert problems(*argv, "--best_metric=loss") == [f"command line: best_metric: 'loss': {rule}"]
    assert load_config([*argv, "--best_metric=eval/loss"]).config.early_stop_patience == 2


def test_the_batch_is_a_product() -> None:
    product = ["--task=a:B", "--epochs=1", "--micro_batch_size=4", "--accumulation_steps=3"]
    rule = "must be a multiple of micro_batch_size 4 x accumulation_steps 3 = 12"
    assert problems(*product, "--global_batch_size=18") == [
        f"command line: global_batch_size: 18: {rule}"
    ]
    assert load_config([*product, "--global_batch_size=24"]).config.global_batch_size == 24


def test_all_problems_are_told_at_once_and_none_twice(here: Path) -> None:
    Path("train.yaml").write_text("tsk: a:B\nepohs: 3\nlr: -1\nwarmup_steps: 5\nmax_steps: 2\n")
    assert problems("--config=train.yaml", "--sead", "3") == [
        "train.yaml:1: tsk: 'a:B': unknown key; did you mean 'task'?",
        "train.yaml:2: epohs: 3: unknown key; did you mean 'epochs'?",
        "train.yaml:3: lr: -1: must be greater than 0",
        "command line: sead: '3': unknown key; did you mean 'seed'?",
    ]


def test_what_is_typed_stands_in_the_place_of_the_file(here: Path) -> None:
    Path("train.yaml").write_text("task: a:B\nmax_steps: 2\nlr: fast\n")
    assert load_config(["--config=train.yaml", "--lr=0.5"]).config.lr == 0.5
    assert problems("--config=train.yaml", "--lr.x=3") == [
        "command line: lr: {'x': 3}: must be a number"
    ]
    assert problems("--config=train.yaml", "--lr=0.5", "--rate.x=3") == [
        "command line: rate: {'x': '3'}: unknown key; --help lists all keys"
    ]


def test_a_missing_file_comes_with_the_other_problems(here: Path) -> None:
    assert problems("--config=none.yaml", "--seed") == [
        "none.yaml: the training config does not exist",
        "command line: seed: needs a value: --seed VALUE",
    ]


@st.composite
def typos(draw: st.DrawFn) -> tuple[str, str]:
    """A key, and the key with one letter dropped, changed or added."""
    key = draw(st.sampled_from(KEYS))
    at, letter = (
        draw(st.integers(0, len(key) - 1)),
        draw(st.sampled_from(string.ascii_letters + string.digits + "_")),
    )
    head, tail = key[:at], key[at + 1 :]
    return key, draw(
        st.sampled_from([head + tail, head + letter + tail, head + letter + key[at:], key + letter])
    )


@given(typos())
def test_any_one_letter_typo_is_answered_with_the_right_key(typo: tuple[str, str]) -> None:
    key, typed = typo
    assume(typed != key and not typed[0].isdigit())
    lines = problems(f"--{typed}=1")
    assert f"command line: {typed}: '1': unknown key; did you mean {key!r}?" in lines


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("num_epochs", "did you mean 'epochs'?"),
        ("gradient_accumulation_steps", "did you mean 'accumulation_steps'?"),
        ("lora_target_modules", "did you mean 'task_settings.adapter.targets'?"),
        ("val_set_size", "did you mean 'task_settings.evaluation'?"),
        ("cutoff_len", "did you mean 'task_settings.sequence_length'?"),
        ("neftune_noise_alpha", "not offered; remove it"),
        (
            "fsdp",
            "a launch file says it, on the command line (--accel_config FILE, --deepspeed FILE), or accelerate",
        ),
    ],
)
def test_keys_of_other_tools_are_answered_with_ours(key: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(["--task", "m:T", "--epochs", "1", f"--{key}", "1"])
    assert str(caught.value).startswith(f"command line: {key}: '1': unknown key; {meant}")


def test_the_answers_are_keys_that_there_are() -> None:
    from trainer.language import CausalLM
    from trainer.language.adapters import Adapter

    below = {
        "task_settings": annotations_of(CausalLM),
        "task_settings.adapter": annotations_of(Adapter),
    }
    for alias, meant in read_table(ROOT / "trainer" / "config" / "aliases.yaml").items():
        section, _, name = meant.rpartition(".")
        if " " not in meant:
            assert name in (below[section] if section else annotations_of(TrainConfig)), alias


def test_keys_of_other_tools_below_the_task_are_answered_with_ours() -> None:
    from trainer.language import CausalLM

    words = [
        "--task",
        "m:T",
        "--epochs",
        "1",
        "--task_settings.data",
        "a.txt",
        "--task_settings.model",
        "m",
    ]
    loaded = load_config(
        [*words, "--task_settings.val_set_size", "0.1", "--task_settings.lora_r", "8"]
    )
    with pytest.raises(ConfigError) as caught:
        check_settings(CausalLM, loaded.config.task_settings, loaded)
    assert str(caught.value).splitlines() == [
        "command line: task_settings.val_set_size: '0.1': unknown key; did you mean 'evaluation'?",
        "command line: task_settings.lora_r: '8': unknown key; did you mean 'adapter.r'?",
    ]
