"""The command ``trainer``: its version, its other name, and training without a script."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from jobs import BIN, ROOT, clean_environment, free_port, run

from trainer.commands.cli import main


def test_version_names_the_packages_and_imports_none_of_them() -> None:
    names = ("samecurve", "torch", "accelerate", "deepspeed", "transformers")
    code = "import sys; sys.argv[1:] = ['--version']; import runpy; runpy.run_module('trainer', run_name='__main__')"
    watched = f"try:\n    {code}\nfinally:\n    print([name for name in {names[1:]} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", watched], cwd=ROOT, capture_output=True, text=True, check=True)
    *lines, imported = done.stdout.splitlines()
    assert lines == [*(f"{name} {version(name)}" for name in names), f"python {sys.version.split()[0]}"]
    assert imported == "[]"


def test_unknown_command_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chekc"]) == 2
    assert capsys.readouterr().err == "trainer: no command 'chekc'; did you mean 'check'?\n"


def test_local_rank_before_the_command_is_passed_over(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--local_rank=1", "--version"]) == 0
    assert capsys.readouterr().out.startswith("samecurve ")


@pytest.mark.slow
def test_deepspeeds_launcher_starts_the_command(tmp_path: Path) -> None:
    """It puts --local_rank before the name of the command."""
    words = [
        str(BIN / "deepspeed"),
        "--num_gpus",
        "2",
        "--master_port",
        str(free_port()),
        "--module",
        "trainer",
        "train",
    ]
    words += ["--deepspeed", "ds_configs/zero2.json", "--config", "examples/configs/digits_cnn.yaml"]
    job = run(
        [*words, "--max_steps", "2", "--warmup_steps", "1"], tmp_path / "run", environment=clean_environment()
    ).ok()
    assert (job.plan["strategy"], job.plan["world_size"], job.plan["launcher"]) == ("zero2", 2, "deepspeed")


def test_task_is_found_beside_the_config_and_between_it_and_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As examples/configs/digits_cnn.yaml finds examples/digits_cnn.py."""
    from trainer.config.load import load_config
    from trainer.errors import ConfigError
    from trainer.main import load_task

    (tmp_path / "project" / "configs").mkdir(parents=True)
    (tmp_path / "project" / "only_here.py").write_text("import trainer\nclass Mine(trainer.Task):\n    pass\n")
    config = tmp_path / "project" / "configs" / "train.yaml"
    config.write_text("task: only_here:Mine\nepochs: 1\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    with pytest.raises(ConfigError, match="no module 'only_here' here, beside the config, in the script's folder or"):
        load_task(load_config(["--config", str(config)]))
    monkeypatch.chdir(tmp_path)
    task, _ = load_task(load_config(["--config", str(config)]))
    assert type(task).__name__ == "Mine"
