"""YAML and JSON as configs: what they make of values, and files that cannot be what they look like."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from config_loading import problems

from trainer.config.documents import read_document
from trainer.config.load import load_config
from trainer.errors import ConfigError


def test_numbers_are_what_they_look_like_and_all_else_is_text(here: Path) -> None:
    Path("train.yaml").write_text(
        "task: a:B\nepochs: 1_000\noutput_dir: 010\nlr: 1e-3\neps: .5\nweight_decay: 00.5\nseed: 0x1F\n"
        "task_settings: {a: 10.0.0.1, b: host:29500, c: 1:30, d: 0b11, e: 2024-01-01, f: 0, g: -08, h: .inf}\n"
    )
    config = load_config(["--config=train.yaml"]).config
    assert (config.epochs, config.output_dir, config.lr, config.eps) == (1000, "010", 1e-3, 0.5)
    assert (config.weight_decay, config.seed) == (0.5, 31)
    expected = ["10.0.0.1", "host:29500", "1:30", 3, "2024-01-01", 0, "-08", ".inf"]
    assert list(config.task_settings.values()) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("lr: .nan", ":3: lr: '.nan': must be a valid number"),
        ("max_steps: 010", ":3: max_steps: '010': must be a valid integer"),
        ("mixed_precision: no", ":3: mixed_precision: false: must be 'no', 'bf16' or 'fp16'"),
        ("lr: 1\nlr: 2", ":4: lr: is set twice, first on line 3; keep one"),
        ("task_settings: {1: 2}", ":3: task_settings.1: a key must be text; put it in quotes"),
        ("task_settings: {? [a, b] : 2}", ": task_settings.[ScalarNode"),
        ("lr: !!python/name:os.system", ":3: the file cannot be read: could not determine a constructor for the tag"),
        ("\tlr: 1", ":3: the file cannot be read: found character '\\t' that cannot start any token"),
        ("--- {}\n", ":3: the file cannot be read: but found another document"),
        ("task_settings: &a {x: *a}", ": the file cannot be read: maximum recursion depth"),
        ("x\x7f: 1", ": the file cannot be read: unacceptable character #x007f"),
    ],
)  # fmt: skip
def test_what_yaml_makes_of_a_line(here: Path, line: str, message: str) -> None:
    Path("train.yaml").write_text(f"task: a:B\nepochs: 1\n{line}\n")
    told = problems("--config=train.yaml")
    assert len(told) == 1 or "[a, b]" in line
    assert told[0].startswith(f"train.yaml{message}") or "ScalarNode" in told[0]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ('{"seed": 1,\n"task_settings": {"a": 1,\n"seed": 2,\n"\\u0061": 3}}', ":4: task_settings.a: is set twice, first on line 2; keep one"),
        ('{"seed": 1,\n}', ":2: the file cannot be read: Expecting property name"),
        ('{"seed": 1 // no\n}', ":1: the file cannot be read: Expecting ','"),
        ('{"seed": ' + "1" * 5000 + "}", ": the file cannot be read: Exceeds the limit"),
        ('{"seed": ' + "[" * 100_000 + "]" * 100_000 + "}", ": the file cannot be read: "),
        ("[1]", ": the file must be a mapping of keys to values"),
        ("", ":1: the file cannot be read: Expecting value"),
    ],
    ids=["twice", "comma", "comment", "digits", "levels", "list", "empty"],
)  # fmt: skip
def test_wrong_json_is_one_line(here: Path, text: str, rule: str) -> None:
    Path("train.json").write_text(text)
    [line] = problems("--config=train.json")
    assert line.startswith(f"train.json{rule}")


@pytest.mark.timeout(60)
def test_aliases_that_repeat_each_other_are_refused_at_once(tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 60))]
    (tmp_path / "bomb.yaml").write_text("\n".join(rows))
    with pytest.raises(ConfigError, match=r"bomb.yaml:1: .*: too many values: do aliases"):
        read_document(tmp_path / "bomb.yaml")
    (tmp_path / "fine.yaml").write_text("a: &a {x: [1, 2]}\nb: [*a, *a]\nc: {<<: *a, y: 1}\n")
    data = read_document(tmp_path / "fine.yaml").data
    assert data["b"] == [{"x": [1, 2]}] * 2 and data["c"] == {"x": [1, 2], "y": 1}


def test_a_file_of_almost_this_name_is_named(here: Path) -> None:
    Path("good.yaml").write_text("task: a:B\nepochs: 1\n")
    [line] = problems("--config=good.yml")
    assert line.startswith("good.yml: the file cannot be read: No such file")
    assert line.endswith("; did you mean 'good.yaml'?")
    [line] = problems("--config=elsewhere/good.yml")
    assert "did you mean" not in line


@pytest.mark.timeout(60)
def test_what_is_no_file_is_one_line_at_once(tmp_path: Path) -> None:
    rule = "the file cannot be read: is a pipe, a device, or larger than 1 MiB"
    pipe, huge = tmp_path / "pipe", tmp_path / "huge.json"
    os.mkfifo(pipe)
    with huge.open("wb") as file:
        file.truncate(2**40)
    for path in (pipe, huge, "/dev/zero"):
        assert problems(str(path)) == [f"{path}: {rule}"]
    assert problems(str(tmp_path)) == [f"{tmp_path}: the file cannot be read: Is a directory"]
