"""What trackers have of a run is what the run logged, as their own tools read it back.

| promised | strategies and worlds | tests |
|---|---|---|
| W&B, TensorBoard and Trackio have every row, the model and the profile | ZeRO-2 on 2 (nightly) | test_a_real_run_read_back_by_their_own_tools |
| Pictures, histograms and a confusion matrix are in the run's folder and in all three, shown by every rank or by one | DDP on 2, all on 2 nightly | test_pictures_are_in_the_run_and_in_its_trackers |
| A run that is stopped and resumed has the pictures of one that was not, to the bit, and the confusion matrix of one process | DDP on 2, all on 2 nightly | test_a_resumed_run_has_the_pictures_of_one_that_was_not_stopped |
| Trackio's page draws it | DDP on 2 (make browser) | test_trackios_page_in_a_browser |
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from launchers import BIN, clean_environment, command, run, some_quick
from trackers import inspect, quiet

from trainer.commands.runs import read_run


@pytest.mark.slow
def test_a_real_run_read_back_by_their_own_tools(tmp_path: Path) -> None:
    """Two processes, three trackers at once; nobody is logged in, so W&B is offline at once."""
    words = [*command("ranks", "zero2"), "--config", "examples/configs/digits_cnn.yaml"]
    words += ["--max_steps", "25", "--log_every", "5", "--experiment", "five"]
    words += ["--trackers", "[wandb, tensorboard, trackio]", "--track_model"]
    words += ["--profile_steps", "3-4"]
    environment = quiet(tmp_path, WANDB_API_KEY="", TRACKIO_DIR=str(tmp_path / "trackio"))
    job = run(words, tmp_path / "out", environment=environment).ok()

    assert job.out.count("wandb: offline (no API key") == 1 and "wandb sync" in job.out
    [folder] = (job.output_dir / "wandb").glob("offline-run-*")
    wandb_run = json.loads(inspect("--summary", "--json", str(folder)))
    assert (wandb_run["project"], wandb_run["name"], wandb_run["state"]) == (
        "samecurve",
        "five-zero2-2",
        "finished",
    )
    assert (
        wandb_run["run_id"] == json.loads((job.output_dir / "tracking.json").read_text())["wandb"]
    )
    assert {"zero2", "world-2"} <= set(wandb_run["tags"])
    config = wandb_run["config"]
    for key in (
        "strategy",
        "world_size",
        "precision",
        "global_batch_size",
        "lr",
        "lr_reference",
        "versions",
    ):
        assert config[key] == job.plan[key], key
    assert config["task"] == "digits_cnn:DigitsCNN" and "git_commit" in config
    assert wandb_run["summary"]["eval/loss"]["last"] == job.evaluation["eval/loss"]
    steps = [row["step"] for row in read_run(folder).rows]
    assert steps == sorted(set(steps)) == [1, 5, 10, 15, 20, 23, 25]
    assert list(read_run(folder).curve("loss").values()) == job.losses
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


@pytest.mark.parametrize("how", some_quick("ddp"))
def test_pictures_are_in_the_run_and_in_its_trackers(how: str, tmp_path: Path) -> None:
    words = [*command("ranks", how, script="examples/digits_pictures.py")]
    words += ["--config", "examples/configs/digits_cnn.yaml", "--max_steps", "30"]
    words += ["--trackers", "[wandb, tensorboard, trackio]"]
    environment = quiet(tmp_path, WANDB_API_KEY="", TRACKIO_DIR=str(tmp_path / "trackio"))
    job = run(words, tmp_path / "out", environment=environment).ok()
    assert (job.plan["world_size"], job.plan["strategy"]) == (2, how)
    assert "note: show" not in job.out and "did not take" not in job.out

    media = job.output_dir / "media"
    names = ["eval/confusion", "eval/mistakes", "weights/first"]
    assert [path.name for path in (media / "samples").glob("*.png")] == ["step-00000000.png"]
    for name in names:
        pictures = sorted(path.name for path in (media / name).glob("*.png"))
        assert pictures == ["step-00000023.png", "step-00000030.png"], name
    kept = json.loads((media / "eval/confusion/step-00000030.json").read_text())["counts"]
    for row in range(10):
        for column in range(10):
            assert kept[row][column] == job.evaluation[f"eval/confusion/{row}/{column}"]
    weights = json.loads((media / "weights/first/step-00000030.json").read_text())
    assert sum(weights["counts"]) == 32 * 1 * 3 * 3, "the whole parameter, not a rank's part"

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(
        str(job.output_dir / "tracking" / "samecurve"), size_guidance={"histograms": 0}
    )
    events.Reload()
    assert [event.step for event in events.Images("media/eval/confusion")] == [23, 30]
    assert [event.step for event in events.Histograms("media/weights/first")] == [23, 30]
    assert [event.step for event in events.Images("media/samples")] == [0]
    scalars = events.Tags()["scalars"]
    assert "eval/accuracy" in scalars and "eval/recall/3" in scalars
    assert not any("confusion" in name for name in scalars), "a picture, and no 100 curves"

    [folder] = (job.output_dir / "wandb").glob("offline-run-*")
    rows = read_run(folder).rows
    assert [row["step"] for row in rows] == [0, 1, 10, 20, 23, 30]
    assert rows[0]["media/samples._type"] == "images/separated"
    assert rows[4]["media/weights/first._type"] == "histogram"
    assert rows[4]["media/eval/confusion_table._type"] == "table-file"
    assert not any(name.startswith("eval/confusion") for name in rows[4])
    assert len(list((folder / "files" / "media" / "images" / "media").glob("samples_*.png"))) == 16

    trackio = tmp_path / "trackio" / "media" / "samecurve" / f"DigitsCNN-{how}-2"
    assert sorted(path.name for path in trackio.iterdir()) == ["0", "23", "30"]
    assert len(list((trackio / "0").glob("*.png"))) == 16


def pictures_of(how: str, folder: Path, *more: str) -> dict[str, bytes]:
    """Train 30 steps without trackers; return the content of each file of what was shown."""
    words = [*command("ranks", how, 0 if how == "single" else 2, "examples/digits_pictures.py")]
    words += ["--config", "examples/configs/digits_cnn.yaml", "--max_steps", "30", *more]
    job = run(words, folder).ok()
    assert job.plan["strategy"] == how and "note: show" not in job.out
    media = folder / "media"
    files = sorted(path for path in media.rglob("*") if path.is_file())
    return {str(path.relative_to(media)): path.read_bytes() for path in files}


@pytest.mark.parametrize("how", some_quick("ddp"))
def test_a_resumed_run_has_the_pictures_of_one_that_was_not_stopped(
    how: str, tmp_path: Path
) -> None:
    every = ["--eval_every", "10"]
    whole = pictures_of(how, tmp_path / "whole", *every)
    stopped = pictures_of(how, tmp_path / "stopped", *every, "--stop_at", "15")
    resumed = pictures_of(how, tmp_path / "stopped", *every, "--resume", "auto")

    # With the evaluation of its end, at step 15, which a run without a stop has not.
    at_the_stop = {name for name in stopped if "step-00000015" in name}
    assert at_the_stop and resumed.keys() - at_the_stop == whole.keys()
    for name, content in whole.items():
        assert resumed[name] == content, name

    matrix = "eval/confusion/step-00000030.json"
    alone = pictures_of("single", tmp_path / "alone", *every)
    assert json.loads(alone[matrix]) == json.loads(whole[matrix])


@pytest.mark.browser
def test_trackios_page_in_a_browser(tmp_path: Path) -> None:
    """Trackio's own dashboard of a run of ours in headless Chromium, as ``CHROMIUM`` names it."""
    environment = quiet(tmp_path, TRACKIO_DIR=str(tmp_path / "trackio"), PYTHONUNBUFFERED="1")
    words = [*command("accelerate", "ddp"), "--config", "examples/configs/digits_cnn.yaml"]
    words += ["--max_steps", "20", "--log_every", "5"]
    words += ["--trackers", "[trackio]", "--experiment", "seen"]
    run(words, tmp_path / "out", environment=environment).ok()
    show = [BIN / "trackio", "show", "--project", "samecurve", "--host", "127.0.0.1"]
    without_browser = clean_environment({**environment, "BROWSER": "true"})
    with subprocess.Popen(show, stdout=subprocess.PIPE, text=True, env=without_browser) as server:
        try:
            assert server.stdout is not None
            address = next(
                found[0]
                for line in server.stdout
                if (found := re.search(r"http://127[^ \x1b]+", line))
            )
            program = os.environ.get("CHROMIUM", "chromium")
            words = [program, "--headless", "--no-sandbox", "--disable-gpu"]
            words += ["--disable-background-networking", "--window-size=1300,4000"]
            words += [f"--user-data-dir={tmp_path / 'chromium'}", "--virtual-time-budget=20000"]
            words += ["--dump-dom", address]
            shown = subprocess.run(
                words, capture_output=True, text=True, timeout=90, check=True
            ).stdout
        finally:
            server.terminate()
    assert "seen-ddp-2" in shown and "train/grad_norm" in shown and "samples_per_second" in shown
    assert shown.count("<canvas") + shown.count('class="marks"') >= 5, "its plots are drawn"
