"""``trainer parity``: the verdict, on tasks that keep the promise, break it, or do not run."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from jobs import BIN, ROOT, clean_environment
from origins import origin, sourced

from trainer import TrainConfig
from trainer.commands.parity import _alone, run
from trainer.commands.trial import last_error
from trainer.config.load import Loaded
from trainer.launching.request import Request

DIGITS = ["--config", "examples/configs/digits_cnn.yaml", "--steps", "4", "--micro_batch_size", "16"]


def parity(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    full = [str(BIN / "trainer"), "parity", *words]
    return subprocess.run(full, cwd=folder, env=clean_environment(), capture_output=True, text=True, check=False)


def verdicts(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The last column of the table, without its head."""
    return [line.split()[-1] for line in done.stdout.splitlines() if " x " in line]


def test_the_same_numbers_under_two_strategies(tmp_path: Path) -> None:
    """Warm-up of the config is longer than the runs, which are kept: with them what was typed to start them."""
    done = parity("accel_configs/ddp.yaml", "accel_configs/zero2.yaml", *DIGITS, "--to", str(tmp_path / "runs"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 steps of 64 samples, seed 0" in done.stdout
    assert "the same within 1e-05 of loss and norm" in done.stdout
    assert verdicts(done) == ["reference", "same", "same"]
    assert "16 x 4 x 1" in done.stdout and done.stdout.count("16 x 2 x 2") == 2
    logs = sorted(path.parent.name for path in (tmp_path / "runs").glob("*/log.txt"))
    assert logs == ["0-one-process", "1-ddp", "2-zero2"]


def test_a_folder_of_ones_own_needs_no_script_and_bf16_has_its_own_bounds(tmp_path: Path) -> None:
    """Sums in another order are 1e-2 apart under bf16: by the bounds of full precision no run is the same."""
    shutil.copy(ROOT / "examples/digits_cnn.py", tmp_path / "mine.py")
    lines = (ROOT / "accel_configs/fsdp.yaml").read_text().splitlines()
    lines = [line for line in lines if not line.startswith("mixed_precision:")]
    (tmp_path / "fsdp.yaml").write_text("\n".join([*lines, "mixed_precision: bf16", ""]))
    (tmp_path / "train.yaml").write_text("task: mine:DigitsCNN\nmax_steps: 100\nglobal_batch_size: 64\nlr: 3e-3\n")
    done = parity("fsdp.yaml", "--config", "train.yaml", "--steps", "6", "--micro_batch_size", "32", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same within 0.05 (0.02 at the first step) of loss and norm, 0.2 of the weights" in done.stdout
    assert verdicts(done) == ["reference", "same"]
    norm = next(float(line.split()[-3]) for line in done.stdout.splitlines() if line.endswith(" same"))
    assert norm > 1e-5, "the case is one that needs bounds of its own"


@pytest.mark.parametrize("task", [pytest.param("NormalisedByBatch", marks=pytest.mark.slow), "ByRank"])
def test_a_task_that_depends_on_the_layout_differs(task: str) -> None:
    done = parity("accel_configs/ddp.yaml", *DIGITS[:-1], "64", "--task", f"tests.failing:{task}")
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdicts(done) == ["reference", "differs"]
    assert "NOT the same" in done.stdout


def test_a_run_that_fails_is_shown_with_its_error() -> None:
    done = parity("accel_configs/ddp.yaml", *DIGITS, "--task", "tests.failing:FailsOnOneRank")
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdicts(done) == ["reference", "failed"]
    assert "accel_configs/ddp.yaml: RuntimeError: the cat sat on rank 1" in done.stdout


def test_one_process_is_told_what_only_the_files_say() -> None:
    config = Loaded(config=TrainConfig(task="a:B", max_steps=1), origins={})
    plain = Request(strategy="ddp", strategy_origin=origin("a.yaml:1"), mixed_precision=sourced("bf16", "a.yaml:2"))
    clips = replace(plain, strategy="zero2", mixed_precision=None, max_grad_norm=sourced(0.5, "ds.json:3"))
    assert _alone({"a.yaml": plain, "b.yaml": clips}, config) == {"mixed_precision": "bf16", "max_grad_norm": "0.5"}
    said = Loaded(config=TrainConfig(task="a:B", max_steps=1, mixed_precision="bf16"), origins={})
    assert _alone({"a.yaml": plain}, said) == {}
    owns = replace(clips, optimizer=sourced({"type": "AdamW"}, "ds.json:9"))
    assert _alone({"a.yaml": plain, "b.yaml": owns}, config) is None


def test_thelast_error_is_found() -> None:
    assert last_error("step 1\n\nrank 0: train.yaml:3: lr: -1: must be above 0\n=====\n") == (
        "rank 0: train.yaml:3: lr: -1: must be above 0"
    )
    assert last_error("Traceback (most recent call last):\n  x\nValueError: no\nmore of it\n") == "ValueError: no"
    assert last_error("killed\n\n") == "killed"
    assert last_error("") == ""
    report = (
        "Traceback (most recent call last):\nChildFailedError: \nRoot Cause (first observed failure):\n[0]:\n  rank : 0"
    )
    assert last_error(f"{report}\n  traceback : a.yaml:5: lr: -1: no\n====\n") == "a.yaml:5: lr: -1: no"
    thrown = "Traceback (most recent call last):\n  x\n  ValueError: no\n"
    assert last_error(f"{report}\n  traceback : {thrown}\n====\n") == "ValueError: no"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["accel_configs/ddp.yaml", "--script", "no.py"], r"script: 'no.py': does not exist; give the script that"),
        (["accel_configs/ddp.yaml", "--to", "."], r"to: '\.': exists already"),
        (["accel_configs/ddp.yaml", "--global_batch_size", "63"], r"global_batch_size: 63"),
        (
            ["accel_configs/ddp.yaml", "--global_batch_size", "63", "--micro_batch_size", "21"],
            r"ddp.yaml:\d+.*: num_processes: 2: cannot cut the global batch of 63; set --global_batch_size",
        ),
        (["no.yaml"], r"no.yaml"),
    ],
)
def test_wrong_words(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=message):
        run([*words, "--config", "examples/configs/digits_cnn.yaml"])
