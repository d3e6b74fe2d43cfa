"""What commands say of strategies is true: parity, compare, and the memory that is planned.

| promised | strategies and worlds | tests |
|---|---|---|
| parity finds the same numbers the same, within bounds of the precision | one process, FSDP2 and ZeRO-2 on 2; under the launcher, bf16 (nightly) | test_the_same_numbers_as_in_one_process, test_a_folder_of_ones_own_needs_no_script_and_bf16_has_its_own_bounds |
| It finds a task out that depends on the layout | one process, DDP on 2 (nightly) | test_a_task_that_depends_on_the_layout_differs |
| Its page draws each run and hides it, without a request | one process, DDP and FSDP2 on 2 (make browser) | test_the_page_in_a_browser |
| It tells rounding from a difference | one process, DDP on 2 (nightly) | test_a_network_with_kinks_goes_where_rounding_leads |
| Live bytes are those that plan computes | all on 2, ZeRO-3 with offload (nightly) | test_live_bytes_are_those_of_the_formula |
| Setting up holds one whole parameter at a time | ZeRO-3 on 2 (nightly) | test_setting_up_holds_one_whole_parameter_at_a_time |
"""

from __future__ import annotations

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from browser import in_chromium
from launchers import BIN, ROOT, completed, launch_file, ranks, some_quick, worked

from trainer.commands import cli, trials
from trainer.commands.finished_runs import read_run

DIGITS = [
    "--config",
    "examples/configs/digits_cnn.yaml",
    "--steps",
    "4",
    "--micro_batch_size",
    "16",
]


def parity(*words: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    full = [str(BIN / "trainer"), "parity", *words]
    return completed(full, folder=folder)


def verdicts(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The last column of the table, without its head."""
    return [line.split()[-1] for line in done.stdout.splitlines() if " x " in line]


def forked(words: list[str], **files: Any) -> subprocess.CompletedProcess[str]:
    """Start the ranks of a training that parity starts, without the seconds of a launcher."""
    file = words[words.index("--config_file") + 1] if "--config_file" in words else None
    named = ["--accel_config", file] if file else []
    settings = words[words.index("trainer") + 2 :]
    world = 2 if file or "torch.distributed.run" in words else 0  # of a DeepSpeed JSON
    done = ranks(["examples/train.py", *named, *settings], world)
    files["stdout"].write(done.stdout + done.stderr)
    return done


@pytest.mark.parametrize("launched", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_the_same_numbers_as_in_one_process(
    launched: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Warm-up of the config is longer than the runs, which are kept: with them what was typed to
    start them.
    """
    words = ["accel_configs/fsdp.yaml", *DIGITS, "ds_configs/zero2.json"]
    words += ["--to", str(tmp_path / "kept")]
    if launched:
        done = parity(*words)
    else:
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(trials, "subprocess", SimpleNamespace(run=forked))
        code = cli.main(["parity", *words])
        done = subprocess.CompletedProcess(words, code, *capsys.readouterr())
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same within 1e-05 of loss and norm" in done.stdout
    assert verdicts(done) == ["reference", "same", "same"]
    assert "16 x 4 x 1" in done.stdout and "16 x 2 x 2" in done.stdout
    names = ["0-one-process", "1-fsdp", "2-zero2"]
    runs = [read_run(tmp_path / "kept/runs" / name) for name in names]
    assert [run.name for run in runs] == names
    assert [run.plan["world_size"] for run in runs] == [1, 2, 2]
    assert [run.plan["strategy"] for run in runs] == ["single", "fsdp", "zero2"]
    assert f"curves: {tmp_path}/kept/compare.html" in done.stdout
    logs = sorted(path.name for path in (tmp_path / "kept/logs").iterdir())
    assert logs == [f"{name}.txt" for name in names]


# Hides the first run by a click on the legend, and tries a request.
PROBE = """<script>
addEventListener("load", async () => {
  const second = () => new Promise((done) => setTimeout(done, 1000));
  const drawn = (panel) => document.querySelectorAll(`.${panel} .scatterlayer .trace`).length;
  await second();
  const seen = {shown: [drawn("xy"), drawn("x3y3")]};
  for (const kind of ["mousedown", "mouseup"])
    document.querySelector(".legendtoggle").dispatchEvent(new MouseEvent(kind, {bubbles: true}));
  await second();
  seen.left = [drawn("xy"), drawn("x3y3")];
  seen.requests = performance.getEntriesByType("resource").length;
  await fetch("https://example.org/").catch(() => {});
  document.title = JSON.stringify(seen);
});
</script>"""


@pytest.mark.browser
def test_the_page_in_a_browser(tmp_path: Path) -> None:
    """The console has the refused request of the probe, and would have errors of the page."""
    files = ["accel_configs/ddp.yaml", "accel_configs/fsdp.yaml"]
    done = parity(*files, *DIGITS, "--to", str(tmp_path / "kept"))
    assert done.returncode == 0, done.stdout + done.stderr
    page = tmp_path / "kept/compare.html"
    assert f"curves: {page}" in done.stdout
    probed = tmp_path / "probed.html"
    probed.write_text(page.read_text() + PROBE)
    shown = in_chromium(probed.as_uri(), tmp_path / "chromium")
    title = shown.stdout.partition("<title>")[2].partition("</title>")[0]
    seen = {"shown": [3, 3], "left": [2, 2], "requests": 0}
    assert json.loads(title) == seen
    told = [line for line in shown.stderr.splitlines() if "CONSOLE" in line]
    assert told and all("Content Security Policy" in line for line in told), told


@pytest.mark.slow
def test_a_folder_of_ones_own_needs_no_script_and_bf16_has_its_own_bounds(tmp_path: Path) -> None:
    """Sums in another order are 1e-2 apart under bf16: by the bounds of full precision no run is
    the same.
    """
    shutil.copy(ROOT / "examples/digits_cnn.py", tmp_path / "mine.py")
    lines = (ROOT / "accel_configs/fsdp.yaml").read_text().splitlines()
    lines = [line for line in lines if not line.startswith("mixed_precision:")]
    (tmp_path / "fsdp.yaml").write_text("\n".join([*lines, "mixed_precision: bf16", ""]))
    (tmp_path / "train.yaml").write_text(
        "task: mine:DigitsCNN\nmax_steps: 100\nglobal_batch_size: 64\nlr: 3e-3\n"
    )
    done = parity(
        "fsdp.yaml",
        "--config",
        "train.yaml",
        "--steps",
        "6",
        "--micro_batch_size",
        "32",
        folder=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the same within 0.05 of loss and norm, 0.2 of the weights" in done.stdout
    assert verdicts(done) == ["reference", "same"]


@pytest.mark.slow
def test_a_task_that_depends_on_the_layout_differs() -> None:
    done = parity("accel_configs/ddp.yaml", *DIGITS, "--task", "tests.workers.failing:ByRank")
    assert done.returncode == 1, done.stdout + done.stderr
    assert verdicts(done) == ["reference", "differs"]
    assert "NOT the same" in done.stdout


@pytest.mark.slow
def test_a_network_with_kinks_goes_where_rounding_leads() -> None:
    """At a high learning rate rounding grows from step to step: two processes leave the strict bounds,
    and so does one process from nudged weights.
    """
    words = [
        "--config",
        "examples/configs/digits_cnn.yaml",
        "--steps",
        "60",
        "--lr",
        "1.0",
        "--micro_batch_size",
        "16",
    ]
    done = parity("accel_configs/ddp.yaml", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    first, second, *nudged = verdicts(done)
    assert (first, second) == ("reference", "rounding") and set(nudged) == {"nudged"}
    assert (
        "the same within what rounding does to this model, not within 1e-05 of loss and norm"
        in done.stdout
    )


# The memory that trainer plan computes


@cache
def measured_bytes(how: str, precision: str, folder: Path) -> dict[str, list[float]]:
    """The bytes that the worker measured, for steps of one and of two micro-batches."""
    config = launch_file(folder / f"{how}-{precision}.yaml", how, mixed_precision=precision)
    printed = worked(["tests/workers/memory.py", config, how]).splitlines()
    return dict(json.loads(next(line for line in printed if line.startswith("{"))))


@pytest.mark.parametrize("precision", ["bf16", pytest.param("no", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "how", [*some_quick(), pytest.param("zero3_offload", marks=pytest.mark.slow)]
)
def test_live_bytes_are_those_of_the_formula(how: str, precision: str, folder: Path) -> None:
    told = measured_bytes(how, precision, folder)
    measurements = [*zip(told["measured"], told["predicted"], strict=True)]
    if how == "zero1":  # lets gradients go as it exchanges them: they are whole before that only
        measurements = measurements[1:]
    for measured, predicted in measurements:
        assert measured == pytest.approx(predicted, rel=0.01)


@pytest.mark.slow
def test_setting_up_holds_one_whole_parameter_at_a_time(folder: Path) -> None:
    """Beside this rank's share of all; the model that the task built is not counted."""
    told = measured_bytes("zero3", "bf16", folder)
    whole, largest = told["elements"][0], told["largest"][0]
    assert max(told["setting up"]) <= 1.01 * (whole / 2 + largest)
