"""W&B never blocks, and a resumed training is the same run."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from fake_run import fake_run
from launchers import ROOT, clean_environment, json_in
from plans import plan, request
from tracked import SECRET
from trackers import inspect, quiet

from trainer import TrainConfig
from trainer.callbacks import wandb_run
from trainer.reporting.directory import RunDirectory

# Logs the steps from the second argument to the third to W&B, into the folder of the first.
SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, "tests/workers")
from tracked import fail, trained
from trainer.distributed.exit import run_and_exit
run_and_exit(lambda: {}(Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3]))))
"""


def log_steps(tmp_path: Path, first: int, end: int, **environment: str) -> tuple[str, float]:
    """Log steps in a process of its own; return what it printed, and the seconds that it took."""
    words = [
        sys.executable,
        "-c",
        SCRIPT.format("trained"),
        str(tmp_path / "out"),
        str(first),
        str(end),
    ]
    words.append(f"--task_settings.hub_token={SECRET}")
    begin = time.monotonic()
    done = subprocess.run(
        words,
        cwd=ROOT,
        env=clean_environment(quiet(tmp_path, **environment)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout + done.stderr, time.monotonic() - begin


@pytest.mark.slow
def test_three_attempts_are_one_run_and_no_secret_is_in_its_files(tmp_path: Path) -> None:
    outputs = [log_steps(tmp_path, first, first + 3, WANDB_API_KEY="")[0] for first in (1, 4, 7)]
    folders = sorted((tmp_path / "out/wandb").glob("offline-run-*"))
    assert len(folders) == 3 and len({folder.name.rsplit("-", 1)[1] for folder in folders}) == 1
    assert not any(SECRET in text for text in outputs)
    assert leaks(tmp_path / "out") == []


@pytest.mark.slow
def test_a_failed_training_keeps_its_curve(tmp_path: Path) -> None:
    """wandb writes in blocks, and leaving a failed job does not wait for anybody."""
    words = [sys.executable, "-c", SCRIPT.format("fail"), str(tmp_path / "out"), "1", "4"]
    environment = clean_environment(quiet(tmp_path, WANDB_API_KEY=""))
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1 and "loss is nan" in done.stderr, done.stderr
    [folder] = (tmp_path / "out/wandb").glob("offline-run-*")
    [file] = folder.glob("*.wandb")
    assert file.read_bytes().count(b"train/loss") >= 3
    assert json.loads(inspect("--summary", "--json", str(folder)))["exit_code"] == 1


def leaks(folder: Path) -> list[str]:
    """Return the names of files that hold the secret."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files if SECRET.encode() in path.read_bytes()]


@pytest.mark.parametrize("refuses", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_dead_server_costs_seconds(refuses: bool, tmp_path: Path) -> None:
    """The dead one takes the connection and never answers: wandb itself would wait 90 seconds.
    The other one answers every request with 401.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:
        if refuses:
            threading.Thread(target=refuse, args=(server,), daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        output, seconds = log_steps(tmp_path, 1, 3, WANDB_API_KEY=SECRET, WANDB_BASE_URL=address)
    assert output.count("wandb: offline (") == 1, output
    assert refuses or "giving up" in output
    assert seconds < (45 if refuses else 30)
    assert leaks(tmp_path / "out") == [] and SECRET not in output


def refuse(server: socket.socket) -> None:
    """Answer every request with 401, until the server is closed."""
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(65536)
            connection.sendall(
                b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            )


def test_the_variable_is_the_id_of_a_fresh_folder_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = RunDirectory(str(tmp_path), main=True)
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    assert wandb_run.run_id(directory) == "mine"
    assert json_in(tmp_path / wandb_run.FILE) == {"wandb": "mine"}

    monkeypatch.setenv("WANDB_RUN_ID", "other")
    assert wandb_run.run_id(directory) == "mine", "the folder continues its run"


@pytest.mark.parametrize(("given", "expected"), [(None, "mine"), ("own", "own")])
def test_the_project_of_the_config_goes_before_the_variable(
    given: str | None, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    config = TrainConfig(task="a:B", max_steps=1, **({"project": given} if given else {}))
    run = fake_run(config=config, plan=plan(request("ddp")), name="run")
    run.directory = RunDirectory(str(tmp_path), main=True)
    assert wandb_run.WandbRun(run).run_name == expected
