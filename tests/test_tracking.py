"""Trackers: what they are told, by their own tools; W&B never blocks, and a resumed training is the same run."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jobs import BIN, ROOT, clean_environment, command, run

from trainer.callbacks.configured import configured_callbacks
from trainer.callbacks.tracking import Tracking, without_secrets
from trainer.commands.runs import read_run
from trainer.config.train_config import TrainConfig
from trainer.errors import ConfigError, Origin, TrainerError
from trainer.reporting.directory import RunDirectory

SECRET = "0123456789abcdef0123456789abcdef01234567"


def quiet(tmp_path: Path, **more: str) -> dict[str, str]:
    """An environment in which nobody has logged in anywhere."""
    return {"HOME": str(tmp_path), "NETRC": str(tmp_path / "netrc"), "WANDB_CONFIG_DIR": str(tmp_path), **more}


def inspect(*words: str) -> str:
    done = subprocess.run([BIN / "wandb", "leet", "inspect", *words], capture_output=True, text=True, check=True)
    return done.stdout


def test_a_real_run_read_back_by_their_own_tools(tmp_path: Path) -> None:
    """Two processes, three trackers at once; nobody is logged in, so W&B is offline at once."""
    words = [*command("accelerate", "zero2"), "--config", "examples/configs/digits_cnn.yaml", "--max_steps", "25"]
    words += [
        "--log_every",
        "5",
        "--trackers",
        "[wandb, tensorboard, trackio]",
        "--experiment",
        "five",
        "--profile_steps",
    ]
    words += ["3-4", "--track_model"]
    environment = quiet(tmp_path, WANDB_API_KEY="", TRACKIO_DIR=str(tmp_path / "trackio"))
    job = run(words, tmp_path / "out", environment=environment).ok()

    assert job.out.count("wandb: offline (no API key") == 1 and "wandb sync" in job.out
    [folder] = (job.output_dir / "wandb").glob("offline-run-*")
    told = json.loads(inspect("--summary", "--json", str(folder)))
    assert (told["project"], told["name"], told["state"]) == ("samecurve", "five-zero2-2", "finished")
    assert told["run_id"] == json.loads((job.output_dir / "tracking.json").read_text())["wandb"]
    assert {"zero2", "world-2"} <= set(told["tags"])
    config, plan = told["config"], job.plan
    for key in ("strategy", "world_size", "precision", "global_batch_size", "lr", "lr_reference", "versions"):
        assert config[key] == plan[key], key
    assert config["task"] == "digits_cnn:DigitsCNN" and "git_commit" in config
    assert told["summary"]["eval/loss"]["last"] == job.evaluation["eval/loss"]
    steps = [row["step"] for row in read_run(folder).rows]
    assert steps == sorted(set(steps)) == [1, 5, 10, 15, 20, 23, 25]
    assert [value for _, value in read_run(folder).curve("loss")] == job.losses
    records = [json.loads(line) for line in inspect("--json", str(folder)).splitlines()]
    assert [r["artifact"]["type"] for r in records if r["type"] == "artifact"] == ["model"]

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(job.output_dir / "tracking" / "samecurve"))
    events.Reload()
    assert [(e.step, pytest.approx(e.value)) for e in events.Scalars("train/loss")] == [
        (row["step"], row["loss"]) for row in job.rows if "loss" in row
    ]
    assert any((tmp_path / "trackio").rglob("*.db"))
    assert (job.output_dir / "profile" / "trace.json.gz").stat().st_size > 1000
    assert "convolution" in (job.output_dir / "profile" / "operations.txt").read_text()


@pytest.mark.browser
def test_trackios_page_in_a_browser(tmp_path: Path) -> None:
    """Trackio's own dashboard of a run of ours in headless Chromium, as ``CHROMIUM`` names it."""
    environment = quiet(tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"), PYTHONUNBUFFERED="1")
    words = [*command("accelerate", "ddp"), "--config", "examples/configs/digits_cnn.yaml", "--max_steps", "20"]
    words += ["--log_every", "5", "--trackers", "[trackio]", "--experiment", "seen"]
    run(words, tmp_path / "out", environment=environment).ok()
    with subprocess.Popen(
        [BIN / "trackio", "show", "--project", "samecurve", "--host", "127.0.0.1"],
        stdout=subprocess.PIPE, text=True, env=clean_environment({**environment, "BROWSER": "true"}),
    ) as server:  # fmt: skip
        try:
            assert server.stdout is not None
            address = next(found[0] for line in server.stdout if (found := re.search(r"http://127[^ \x1b]+", line)))
            program = os.environ.get("CHROMIUM", "chromium")
            words = [
                program,
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-background-networking",
                "--window-size=1300,4000",
            ]
            words += [f"--user-data-dir={tmp_path / 'chromium'}", "--virtual-time-budget=20000", "--dump-dom", address]
            shown = subprocess.run(words, capture_output=True, text=True, timeout=90, check=True).stdout
        finally:
            server.terminate()
    assert "seen-ddp-2" in shown and "train/grad_norm" in shown and "samples_per_second" in shown
    assert shown.count("<canvas") + shown.count('class="marks"') >= 5, "its plots are drawn"


CONTINUED = """
import sys
from pathlib import Path
sys.path.insert(0, "tests")
from test_tracking import fail, trained
from trainer.distributed.exit import run_and_exit as run
run(lambda: {}(Path(sys.argv[1]), range(int(sys.argv[2]), int(sys.argv[3]))))
"""


def trained(path: Path, steps: range, *, end: bool = True) -> None:
    """What the trainer does with the tracker, without training."""
    from accelerate import Accelerator

    directory = RunDirectory(str(path), main=True)
    path.mkdir(exist_ok=True)
    plan = SimpleNamespace(strategy="ddp", world_size=2, mixed_precision="no", device="cpu")
    config = TrainConfig(task="a:Task", max_steps=9, task_settings={"hub_token": SECRET}, trackers=["wandb"])
    meter = SimpleNamespace(paused=lambda name: __import__("contextlib").nullcontext())
    trainer: Any = SimpleNamespace(
        is_main=True, directory=directory, plan=plan, config=config, meter=meter, accelerator=Accelerator(cpu=True),
        facts={"strategy": "ddp", "deepspeed": {"api_key": SECRET}}, step=steps[-1],
    )  # fmt: skip
    tracking = Tracking(["wandb"], origin=Origin("here"))
    for step in steps:
        info: Any = SimpleNamespace(
            step=step, epoch=0.1 * step, samples=8 * step, metrics={"step": step, "loss": 1 / step}
        )
        info.evaluation = None
        tracking.on_step(trainer, info)
    if end:
        tracking.on_end(trainer, {"peak_memory_bytes": [1], "seconds": {"wall": 1.0}})


def continued(tmp_path: Path, first: int, end: int, **environment: str) -> tuple[str, float]:
    words = [sys.executable, "-c", CONTINUED.format("trained"), str(tmp_path / "out"), str(first), str(end)]
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


def test_two_resumes_are_one_run_and_secrets_stay_here(tmp_path: Path) -> None:
    said = [continued(tmp_path, first, first + 3, WANDB_API_KEY="")[0] for first in (1, 4, 7)]
    folders = sorted((tmp_path / "out" / "wandb").glob("offline-run-*"))
    assert len(folders) == 3 and len({folder.name.rsplit("-", 1)[1] for folder in folders}) == 1
    rows = [row for folder in folders for row in read_run(folder).rows]
    assert [row["step"] for row in rows] == [row["_step"] for row in rows] == list(range(1, 10))
    assert not any(SECRET in text for text in said)
    assert leaks(tmp_path / "out") == []


def test_a_failed_training_keeps_its_curve(tmp_path: Path) -> None:
    """wandb writes in blocks, and leaving a failed job does not wait for anybody."""
    words = [sys.executable, "-c", CONTINUED.format("fail"), str(tmp_path / "out"), "1", "4"]
    environment = clean_environment(quiet(tmp_path, WANDB_API_KEY=""))
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1 and "loss is nan" in done.stderr, done.stderr
    [folder] = (tmp_path / "out" / "wandb").glob("offline-run-*")
    assert [row["step"] for row in read_run(folder).rows] == [1, 2, 3]
    assert json.loads(inspect("--summary", "--json", str(folder)))["exit_code"] == 1


def fail(path: Path, steps: range) -> None:
    trained(path, steps, end=False)
    raise TrainerError("loss is nan")


def leaks(folder: Path) -> list[str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return [path.name for path in files if SECRET.encode() in path.read_bytes()]


def test_a_dead_server_costs_seconds(tmp_path: Path) -> None:
    """One that takes the connection and never answers: wandb itself would wait for 90 seconds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        said, took = continued(tmp_path, 1, 3, WANDB_API_KEY=SECRET, WANDB_BASE_URL=address)
    assert said.count("wandb: offline (") == 1 and "does not answer" in said
    assert took < 30, took
    assert leaks(tmp_path / "out") == [] and SECRET not in said


def test_a_server_that_refuses_the_key(tmp_path: Path) -> None:
    """It answers every request with 401."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=refuse, args=(server,), daemon=True).start()
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        said, took = continued(tmp_path, 1, 3, WANDB_API_KEY=SECRET, WANDB_BASE_URL=address)
    assert said.count("wandb: offline (") == 1, said
    assert took < 45, took
    assert leaks(tmp_path / "out") == [] and SECRET not in said


def refuse(server: socket.socket) -> None:
    while True:
        try:
            connection, _ = server.accept()
        except OSError:
            return
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("wandbb", "no tracker of Accelerate; did you mean 'wandb'?"),
        ("comet_ml", "its package is not installed: pip install comet-ml"),
    ],
)
def test_trackers_that_are_not_there(name: str, rule: str) -> None:
    with pytest.raises(ConfigError, match=f"train.yaml:3: trackers: '{name}': ") as caught:
        configured_callbacks(TrainConfig(task="a:B", max_steps=1, trackers=[name]), [], {"trackers": "train.yaml:3"})
    assert rule in str(caught.value)


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"profile_steps": "1-3"}, "from 2 on: the first step warms up"),
        ({"profile_steps": "5-4"}, "must be steps such as 10-12"),
        ({"track_model": True}, "needs wandb among the trackers"),
        ({"trackers": ["wandb", "wandb"]}, "names one twice"),
    ],
)
def test_keys_that_do_not_go_together(values: dict[str, Any], rule: str) -> None:
    with pytest.raises(ConfigError, match=rule):
        TrainConfig(task="a:B", max_steps=9, **values)


def test_secrets_are_left_out_of_a_configuration() -> None:
    values = {"lr": 1, "hub_token": "x", "max_tokens": 5, "deep": {"API-KEY": "x", "key": 1, "password": "x"}}
    assert without_secrets(values) == {"lr": 1, "max_tokens": 5, "deep": {"key": 1}}
