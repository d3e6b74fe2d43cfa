"""The first commands of a new user work as they stand, from a checkout or a wheel, with GPUs or without.

| promised | strategies and worlds | tests |
|---|---|---|
| make train starts as many processes as the machine takes | DDP with 8 emulated GPUs; 0 and 1 (nightly) | test_make_train_starts_as_many_processes_as_the_machine_takes |
| Tests and the deepspeed launcher rehearse on the CPU beside GPUs | one process, ZeRO-2 on 2 (nightly) | test_tests_rehearse_beside_gpus, test_deepspeeds_launcher_rehearses_beside_gpus |
| The task of the README trains by the line below it | FSDP2 on 2; under accelerate launch (nightly) | test_the_task_of_the_readme_trains |
| A wheel without a checkout trains what trainer new writes, and the test that it writes passes | DDP on 2 (nightly) | test_wheel_trains_and_tests_a_new_folder |
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest
import torch
from launchers import (
    BIN,
    HIDE_GPUS,
    ROOT,
    clean_environment,
    command,
    command_script,
    completed,
    json_in,
    ranks,
    run,
)

from trainer.commands import cli

TINY = ["--config", "examples/configs/digits_cnn.yaml", "--max_steps", "2", "--warmup_steps", "1"]


def with_gpus(count: int) -> dict[str, str]:
    """Return an environment in which Python counts GPUs, which the tests have hidden from this
    process.
    """
    path = os.pathsep.join(
        [str(ROOT / "tests/support/forged_gpus"), os.environ.get("PYTHONPATH", "")]
    )
    shown = {name: value for name, value in clean_environment().items() if name not in HIDE_GPUS}
    return shown | {"PYTHONPATH": path, "FORGED_GPUS": str(count)}


def ask(words: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("gpus", "processes"),
    [
        pytest.param(0, 2, marks=pytest.mark.slow),
        pytest.param(1, 1, marks=pytest.mark.slow),
        (8, 2),
    ],
)
def test_make_train_starts_as_many_processes_as_the_machine_takes(
    gpus: int, processes: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what it starts is in order there: the batch can be divided, and no process is without a
    GPU.
    """
    make = ["make", "-n", "--assume-old", ".venv/installed", f"BIN={BIN}", "train"]
    told = ask(make, with_gpus(gpus))
    assert f"--config_file accel_configs/ddp.yaml --num_processes {processes} " in told
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    assert cli.main(["check", "accel_configs/ddp.yaml", *TINY, "--processes", str(processes)]) == 0
    said = capsys.readouterr().out
    assert f", {processes} x {'cuda' if gpus else 'cpu'} by accelerate" in said


@pytest.mark.slow
def test_tests_rehearse_beside_gpus() -> None:
    one = "tests/unit/test_loop.py::test_fit_works_in_a_thread"
    ask([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", one], with_gpus(2))


@pytest.mark.slow
def test_deepspeeds_launcher_rehearses_beside_gpus(tmp_path: Path) -> None:
    environment = with_gpus(2) | HIDE_GPUS
    job = run(
        [*command("deepspeed", "zero2"), *TINY], tmp_path / "run", environment=environment
    ).ok()
    assert (job.plan["device"], job.plan["rehearsal"], job.plan["world_size"]) == ("cpu", True, 2)


# What README, trainer new have people paste


@pytest.mark.parametrize("launcher", ["ranks", pytest.param("accelerate", marks=pytest.mark.slow)])
def test_the_task_of_the_readme_trains(launcher: str, tmp_path: Path) -> None:
    """Pasted whole, and started by the line below it, or by its words behind the launcher."""
    readme = (ROOT / "README.md").read_text()
    found = re.search(
        r"```python\n(# mytask\.py\n.*?)```\n```\n(accelerate launch .*?)\n```", readme, re.DOTALL
    )
    assert found is not None
    (tmp_path / "mytask.py").write_text(found[1])
    (tmp_path / "accel_configs").symlink_to(ROOT / "accel_configs")
    program, launch, *rest = shlex.split(found[2])
    if launcher == "accelerate":
        port = ["--main_process_port", "0"]
        done = completed([str(BIN / program), launch, *port, *rest], folder=tmp_path)
    else:
        option, file, module, name, *words = rest
        assert (option, module, name) == ("--config_file", "-m", "trainer")
        words += ["--accel_config", file, "--epochs", "4"]
        done = ranks([command_script(tmp_path), *words])
    assert done.returncode == 0, done.stderr[-4000:]
    folder = tmp_path / "runs/default"
    plan = json_in(folder / "plan.json")
    assert (plan["strategy"], plan["world_size"]) == ("fsdp", 2)
    assert json_in(folder / "summary.json")["evaluation"]["eval/accuracy"] > 0.8


# An installed wheel


NEEDED = ("pyproject.toml", "README.md", "LICENSE", "trainer", "accel_configs", "ds_configs")


@pytest.mark.slow
def test_wheel_trains_and_tests_a_new_folder(tmp_path: Path) -> None:
    """Built from what the wheel needs and nothing else, installed beside our dependencies and
    without our checkout.
    """
    source = tmp_path / "source"
    source.mkdir()
    for name in NEEDED:
        if (ROOT / name).is_dir():
            copytree(
                ROOT / name, source / name, symlinks=True, ignore=ignore_patterns("__pycache__")
            )
        else:
            copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    answer_of(
        [
            *pip,
            "wheel",
            "--no-deps",
            "--no-build-isolation",
            "--wheel-dir",
            str(tmp_path),
            str(source),
        ],
        tmp_path,
    )
    [wheel] = tmp_path.glob("*.whl")

    fresh = tmp_path / "fresh"
    answer_of([sys.executable, "-m", "venv", "--without-pip", str(fresh)], tmp_path)
    python = fresh / "bin/python"
    packages = Path(
        answer_of(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], tmp_path
        ).strip()
    )
    # A path line of ours does not read the .pth files over there, so an editable install of ours
    # stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (fresh / "bin/accelerate").write_text(
        f"#!{python}\nfrom accelerate.commands.accelerate_cli import main\nraise SystemExit(main())\n"
    )
    (fresh / "bin/accelerate").chmod(0o755)
    answer_of(
        [*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], tmp_path
    )
    found = answer_of(
        [str(python), "-c", "import trainer; print(trainer.__file__)"], tmp_path
    ).strip()
    assert found.startswith(str(packages))

    *_, command = answer_of([str(fresh / "bin/trainer"), "new", "demo"], tmp_path).splitlines()
    said = answer_of(["bash", "-c", command], tmp_path)
    assert "strategy   ddp, 2 x cpu" in said
    assert (tmp_path / "demo/runs/classifier/model/model.safetensors").is_file()
    accuracy = float(said.rpartition("eval/accuracy ")[2].split()[0])
    assert accuracy > 0.5, "always naming the largest package is right for a quarter of the pieces"
    assert "2 passed" in answer_of([str(python), "-m", "pytest", "-q", "demo"], tmp_path)


def answer_of(words: list[str], folder: Path) -> str:
    """Run a command in ``folder``; what it printed."""
    environment = {
        name: value for name, value in clean_environment().items() if name != "PYTHONPATH"
    }
    environment["PATH"] = os.defpath
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout
