"""An installed wheel: what ``trainer new`` writes trains, anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from shutil import copy, copytree, ignore_patterns

import pytest
from launchers import ROOT, clean_environment

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
    ask(
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
    ask([sys.executable, "-m", "venv", "--without-pip", str(fresh)], tmp_path)
    python = fresh / "bin" / "python"
    packages = Path(
        ask(
            [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], tmp_path
        ).strip()
    )
    # A path line of ours does not read the .pth files over there, so an editable install of ours
    # stays out.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (fresh / "bin" / "accelerate").write_text(
        f"#!{python}\nfrom accelerate.commands.accelerate_cli import main\nraise SystemExit(main())\n"
    )
    (fresh / "bin" / "accelerate").chmod(0o755)
    ask([*pip, "--python", str(python), "install", "--no-deps", "--no-index", str(wheel)], tmp_path)
    found = ask([str(python), "-c", "import trainer; print(trainer.__file__)"], tmp_path).strip()
    assert found.startswith(str(packages))

    *_, command = ask([str(fresh / "bin" / "trainer"), "new", "demo"], tmp_path).splitlines()
    said = ask(["bash", "-c", command], tmp_path)
    assert "world size      2" in said and "strategy        ddp" in said
    assert (tmp_path / "demo" / "runs" / "classifier" / "model" / "model.safetensors").is_file()
    accuracy = float(said.rpartition("eval/accuracy ")[2].split()[0])
    assert accuracy > 0.5, "always naming the largest package is right for a quarter of the pieces"
    assert "2 passed" in ask([str(python), "-m", "pytest", "-q", "demo"], tmp_path)


def ask(words: list[str], folder: Path) -> str:
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
