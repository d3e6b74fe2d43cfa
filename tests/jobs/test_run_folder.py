"""The folder of a run in real jobs: one run at a time, and a finished one stays as it is."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from launchers import command, run
from one_process import fit, steps
from run_folders import another_run, everything

from trainer import ConfigError

pytestmark = pytest.mark.usefixtures("fresh_accelerate")
JOB = [
    "--task", "tests.workers.resuming:Odd", "--max_steps", "2", "--global_batch_size", "24", "--micro_batch_size", "12",
    "--resume", "auto",
]  # fmt: skip


def test_a_second_run_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    fit(tmp_path, max_steps=4)
    before = everything(tmp_path / "checkpoints")
    with another_run(tmp_path) as held:
        assert held.stdout is not None and held.stdout.readline() == "locked\n"
        said = f"output_dir: '{tmp_path}': another run is writing there \\(process {held.pid} on .+\\); end it, or give"
        for settings in ({"resume": "auto"}, {"overwrite": True}, {}):
            with pytest.raises(ConfigError, match=said):
                fit(tmp_path, **settings)  # type: ignore[arg-type]
        job = run([*command("ranks", "ddp"), *JOB], tmp_path)
        told = f"command line: output_dir: '{tmp_path}': another run is writing there (process {held.pid} on "
        assert job.code and job.err.lstrip()[len("rank 0: ") :].startswith(told), job.err
        assert everything(tmp_path / "checkpoints") == before
        held.kill()
        held.wait()
        fit(tmp_path, resume="auto")
    assert steps(tmp_path) == [8, 6, 4, 2]


def test_the_job_of_a_finished_run_exits_with_zero_and_leaves_it(tmp_path: Path) -> None:
    words = [*command("ranks", "fsdp"), *JOB]
    run(words, tmp_path).ok()
    before = everything(tmp_path)
    job = run(words, tmp_path).ok()
    assert "finished already at step 2; nothing to do" in job.out and everything(tmp_path) == before


def test_a_locale_without_letters_ends_no_run(tmp_path: Path) -> None:
    """Names with accents arrive as single bytes then, and can be printed by nobody."""
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    config = [
        "--config",
        "examples/configs/digits_cnn.yaml",
        "--max_steps",
        "2",
        "--experiment",
        "\xfc",
    ]
    folder = tmp_path / "l\xe4uf \u4e2d 1"
    job = run([sys.executable, "examples/train.py", *config], folder, environment=locale).ok()
    assert "l\\udcc3\\udca4uf" in job.out
    assert job.rows[0]["step"] == 1
