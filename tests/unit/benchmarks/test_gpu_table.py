"""The table for GPUs: what it measures first, what it keeps, what it says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from launchers import ROOT, clean_environment

from benchmarks.gpu_table import (
    EXCHANGES,
    LOOPS,
    Case,
    cases,
    furthest_loss,
    launch_file,
    read,
    table,
)

ROW = {
    "model": "124M", "loop": "hand", "compiled": True, "ms": 20.0, "host_ms": 8.0, "mfu": 0.4,
    "tokens_per_second": 819_200.0, "allocated_gib": 9.0, "reserved_gib": 10.0, "furthest_loss": None,
    "losses": [10.0, 8.0],
}  # fmt: skip


def test_the_most_wanted_rows_come_first() -> None:
    wanted = cases(["124M", "1B"], LOOPS, [True, False])
    assert len(wanted) == 26, "ZeRO-3 refuses to compile"
    assert [str(case) for case in wanted[:3]] == [
        "124M hand compiled",
        "124M single compiled",
        "124M ddp compiled",
    ]
    assert wanted[6] == Case("1B", "hand", True) and wanted[12] == Case("124M", "hand", False)


def test_rows_about_the_exchange_come_once_behind_the_first_models_others() -> None:
    wanted = cases(["124M", "1B"], LOOPS, [True, False], EXCHANGES)
    assert len(wanted) == 29
    assert [case.loop for case in wanted[6:9]] == list(EXCHANGES)
    assert wanted[6] == Case("124M", "zero2-late", True) and wanted[9].model == "1B"


def test_overlap_is_off_in_the_file_of_its_row_alone() -> None:
    late = json.loads(Path(launch_file("zero2-late", 2)["deepspeed"]).read_text())
    assert late["zero_optimization"] == {"stage": 2, "overlap_comm": False}
    for loop in ("zero2", "fsdp"):
        plain, narrow = (launch_file(name, 4)["accel_config"] for name in (loop, f"{loop}-bf16"))
        assert Path(plain).read_text() == Path(narrow).read_text()
        assert "num_processes: 4" in Path(plain).read_text()


def test_losses_are_compared_with_the_loop_by_hand_that_trained_the_same_way() -> None:
    other = {**ROW, "compiled": False, "losses": [1.0, 1.0]}
    row = {**ROW, "loop": "fsdp", "losses": [10.0, 8.4]}
    assert furthest_loss(row, [other, ROW]) == pytest.approx(0.05)
    assert furthest_loss(row, [other]) is None
    assert furthest_loss({**row, "losses": []}, [ROW]) is None
    assert furthest_loss({**ROW, "error": "x", "losses": None}, [ROW]) is None


def test_the_table_has_each_row_beside_the_loop_by_hand_and_the_errors_below() -> None:
    failed = {"model": "124M", "loop": "zero1", "compiled": True, "error": "Traceback\nno memory\nexit code 1"}  # fmt: skip
    fsdp = {**ROW, "loop": "fsdp", "ms": 21.0, "furthest_loss": 1e-3}
    lines = table([ROW, fsdp, failed]).splitlines()
    assert lines[2].startswith("| 124M | hand | yes | 20.00 | 8.00 | 1.000 | 819,200 | 40.0% |")
    assert lines[3] == "| 124M | fsdp | yes | 21.00 | 8.00 | 1.050 | 819,200 | 40.0% | 9.00 | 10.00 | 1.0e-03 |"  # fmt: skip
    assert lines[4] == "- 124M | zero1 | yes: no memory / exit code 1"


@pytest.mark.slow
def test_two_rows_are_rehearsed(tmp_path: Path) -> None:
    out = tmp_path / "out" / "table.jsonl"
    words = [sys.executable, "-m", "benchmarks.gpu_table", "--out", str(out), "--rehearse"]
    words += ["--loops", "hand", "fsdp", "--compiled", "no", "--timed", "4"]
    done = subprocess.run(
        words, cwd=ROOT, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    hand, fsdp = read(out)
    assert (hand["loop"], fsdp["loop"], fsdp["model"]) == ("hand", "fsdp", "tiny")
    assert len(fsdp["losses"]) == 9 and fsdp["furthest_loss"] < 1e-3
    assert fsdp["ms"] > 0 and fsdp["tokens_per_second"] == pytest.approx(64e3 / fsdp["ms"])
    assert "| tiny | fsdp | no |" in done.stdout
    assert [json.loads(line) for line in out.read_text().splitlines()] == [hand, fsdp]
