"""YAML and JSON as configs: what they make of values."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from config_loading import problems

from trainer.config.documents import read_document
from trainer.config.load import load_config
from trainer.errors import ConfigError


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (
            "mixed_precision: no",
            "mixed_precision: false: must be one of 'no', 'bf16', 'fp16'; "
            "write 'no' in quotes, for YAML reads a bare no as false",
        ),
        ("seed: '3'", "seed: '3': must be a whole number; remove the quotes"),
        ("output_dir: 2024", "output_dir: 2024: must be text; put it in quotes"),
        ("betas: [0.9, x]", "betas.1: 'x': must be a number"),
        ("betas: [0.9, 1.0]", "betas.1: 1.0: must be less than 1"),
        ("lr: .nan", "lr: nan: must be a finite number"),
        ("lr: 1e999", "lr: inf: must be a finite number"),
        (f"lr: 1{'0' * 400}", f"lr: 1{'0' * 37}...{'0' * 39}: must be a number"),
        ("weight_decay: .inf", "weight_decay: inf: must be a finite number"),
        ("task_settings: {1: 2}", "task_settings.1: 1: must be text; put it in quotes"),
        ("task_settings: {a: [.nan]}", "task_settings.a.0: nan: must be a finite number"),
        (
            "save_every: 2.5",
            "save_every: 2.5: must be steps such as 100, or epochs such as '2 epochs' or '1/4 epoch'; "
            "epochs are written '2.5 epochs'",
        ),
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
            "max_steps: 010: YAML takes it to the base 8; write a plain number, or '010' in quotes if it is text",
        ),
        (
            "seed: -08",
            "seed: -08: YAML takes it to the base 8; write a plain number, or '-08' in quotes if it is text",
        ),
        (
            "output_dir: 1:30",
            "output_dir: 1:30: YAML takes it to the base 60; write a plain number, or '1:30' in quotes if it is text",
        ),
        (
            "betas: [1:30.5]",
            "betas.0: 1:30.5: YAML takes it to the base 60; write a plain number, or '1:30.5' in quotes if it is text",
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


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [
        (
            "train.json",
            '{"seed": 1,\n"task_settings": {"a": 1,\n"seed": 2,\n"a": 3}}',
            "train.json:4: task_settings.a: the key stands twice, first on line 2; keep one",
        ),
        (
            "train.yaml",
            "task: a:B\x7f\n",
            "train.yaml: not valid YAML: unacceptable character #x007f: special characters are not allowed",
        ),
    ],
)
def test_a_file_that_cannot_be_what_it_looks_like_is_one_line(
    here: Path, name: str, text: str, line: str
) -> None:
    Path(name).write_text(text)
    assert problems(f"--config={name}") == [line]


@pytest.mark.parametrize("depth", [6, 10, 30])
def test_aliases_that_repeat_each_other_are_refused_at_once(depth: int, tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{one}: &a{one} [{', '.join([f'*a{one - 1}'] * 10)}]" for one in range(1, depth)]
    (tmp_path / "bomb.yaml").write_text("\n".join(rows))
    began = time.monotonic()
    with pytest.raises(
        ConfigError,
        match=r"bomb.yaml: stands for more than 100,000 values; do its aliases \(\*name\) rep",
    ):
        read_document(tmp_path / "bomb.yaml")
    assert time.monotonic() - began < 20
    (tmp_path / "fine.yaml").write_text("a: &a {x: [1, 2]}\nb: [*a, *a]\n")
    assert read_document(tmp_path / "fine.yaml").data["b"] == [{"x": [1, 2]}] * 2
