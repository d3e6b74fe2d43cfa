"""``trainer check FILES...``: what would run, or each error once."""

from __future__ import annotations

from pathlib import Path

import pytest
from check_command import Check
from launchers import ROOT

DIGITS = "examples/configs/digits_cnn.yaml"


def test_committed_files_would_run(check: Check) -> None:
    launch_files = sorted([*ROOT.glob("accel_configs/*.yaml"), *ROOT.glob("ds_configs/*.json")])
    # One process has no part in a batch for two. Four have smaller micro-batches.
    several = [path for path in launch_files if path.stem not in ("single", "hsdp")]
    configs = sorted(ROOT.glob("examples/configs/*.yaml"))
    done = check(*map(str, [*several, *configs]))
    assert (done.returncode, done.stderr) == (0, "")
    for path in several:
        assert done.stdout.count(f" under {path}:\n") == len(configs)


def test_errors_of_all_files_are_told_once(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {
        "train.yaml": "task: digits_cnn:DigitsCNN\ntask_settings: {widht: 32}\nepochs: 1\n",
        "lr.yaml": "task: digits_cnn:DigitsCNN\nepochs: 1\nmicro_batch_sise: 8\n",
        "zero.yaml": "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  zero_stge: 3\n",
        "ds.json": '{"zero_optimization": {"stage": 2}, "gradient_cliping": 1.0}\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(ROOT / "examples")
    done = check("accel_configs/ddp.yaml", *(str(tmp_path / name) for name in files))
    assert done.returncode == 2
    told = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    places = [line.removeprefix(f"{tmp_path}/").split(": ")[:2] for line in told]
    assert sorted(places) == [
        ["ds.json:1", "gradient_cliping"],
        ["lr.yaml:3", "micro_batch_sise"],
        ["train.yaml:2", "task_settings.widht"],
        ["zero.yaml:4", "deepspeed_config.zero_stge"],
    ]


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        ([DIGITS, "--processes", "0"], 2, "processes: 0: must be greater than or equal to 1"),
        (["missing.yaml"], 2, "missing.yaml: the file cannot be read"),
        (["mkdocs.yml"], 2, "'mkdocs.yml': has no key of a training config, nor of a"),
        (["/dev/zero"], 2, "/dev/zero: the file cannot be read: is a pipe, a device, or larger"),
        ([DIGITS, "--optimizer", "os.system"], 2, "has no Optimizer 'system'"),
        ([DIGITS, "--run_name={task_settings.widht}"], 2, "did you mean 'task_settings.width'?"),
        ([DIGITS, "--seed"], 2, "seed: needs a value"),
    ],
)
def test_one_clear_error(words: list[str], code: int, told: str, check: Check) -> None:
    done = check(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert told in done.stderr


def test_a_file_of_deepspeed_is_checked_for_a_number_of_processes(
    check: Check, tmp_path: Path
) -> None:
    path = tmp_path / "ds.json"
    path.write_text('{"zero_optimization": {"stage": 1}, "train_micro_batch_size_per_gpu": 4}')
    own = ("--global_batch_size=null", "--micro_batch_size=null")
    done = check("--deepspeed", str(path), "--processes", "8", DIGITS, *own)
    assert (done.returncode, done.stderr) == (0, "")
    assert (
        "strategy    zero1, 8 x cpu by accelerate" in done.stdout
        and "4 x 1 x 8 = 32 " in done.stdout
    )
