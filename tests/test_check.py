"""``trainer check``: all files together, all problems at once."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from jobs import BIN, ROOT, clean_environment


def check(*words: str) -> subprocess.CompletedProcess[str]:
    full = [str(BIN / "trainer"), "check", *words]
    return subprocess.run(full, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)


def test_committed_files_are_in_order() -> None:
    launch_files = sorted([*ROOT.glob("accel_configs/*.yaml"), *ROOT.glob("ds_configs/*.json")])
    single = [path for path in launch_files if path.stem == "single"]
    configs = sorted(ROOT.glob("examples/configs/*.yaml"))
    done = check(*(str(path) for path in launch_files + configs if path not in single))
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("nothing is wrong\n")
    for path in launch_files:
        if path not in single:
            stem = path.stem.removesuffix("_offload")
            assert done.stdout.count(f" under {path}\n") == len(configs)
            assert f"{path}: {stem}" in done.stdout


def test_every_problem_of_every_file(tmp_path: Path) -> None:
    (tmp_path / "train.yaml").write_text(
        "task: digits_cnn:DigitsCNN\ntask_settings: {widht: 32}\nepochs: 1\nlr: -1\nmicro_batch_sise: 8\n"
    )
    (tmp_path / "tasks.yaml").write_text("task: digits_cnn:DigitsCNN\ntask_settings: {widht: 32}\nepochs: 1\n")
    (tmp_path / "zero.yaml").write_text(
        "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stge: 3\n"
    )
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2}, "gradient_cliping": 1.0}\n')
    done = check(
        *(str(tmp_path / name) for name in ("train.yaml", "tasks.yaml", "zero.yaml", "ds.json", "missing.yaml"))
    )
    assert done.returncode == 2
    told = [line.removeprefix(f"{tmp_path}/") for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert [line.split(": ")[:2] for line in told] == [
        ["train.yaml:4", "lr"],
        ["train.yaml:5", "micro_batch_sise"],
        ["zero.yaml:4", "deepspeed_config.zero_stge"],
        ["ds.json:1", "gradient_cliping"],
        ["missing.yaml", "the file does not exist"],
        ["tasks.yaml:2", "task_settings.widht"],
    ]
    assert done.stdout.endswith("6 problems\n")


def test_values_that_do_not_go_together() -> None:
    zero, config = "ds_configs/zero2.json", "examples/configs/digits_cnn.yaml"
    done = check(zero, config, "--processes", "3")
    assert done.returncode == 2
    assert "global_batch_size: 64: must be a multiple of micro_batch_size 32 x world_size 3 = 96" in done.stderr


@pytest.mark.parametrize(("words", "code"), [((), 0), (("chek",), 2)])
def test_the_command_itself(words: tuple[str, ...], code: int) -> None:
    full = [str(BIN / "trainer"), *words]
    done = subprocess.run(full, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "check" in (done.stderr if code else done.stdout)
