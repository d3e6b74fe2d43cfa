"""``trainer plan``: formulas of memory, and the launch file that fits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from launchers import ROOT

from trainer.commands.cli import main
from trainer.strategies.memory import LAYOUTS, states_of

BILLION = 10**9
# Rajbhandari et al. 2020, figure 1: GB of 7.5 billion parameters on 64 GPUs. FSDP2 divides what
# ZeRO-3 divides, and its 4 + 4 + 8 bytes have the same sum as the paper's 2 + 2 + 12.
PAPER = {"ddp": 120.0, "zero1": 31.4, "zero2": 16.6, "zero3": 1.9, "fsdp": 1.9}


def first_row(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, str]:
    """Return the values of the first launch file, by the names of the columns."""
    assert main(["plan", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    head, first = [re.split("  +", line) for line in lines if "  " in line][:2]
    return dict(zip(head, first, strict=True))


@pytest.mark.parametrize("name", PAPER)
def test_states_are_those_of_the_zero_paper(name: str) -> None:
    states = states_of(LAYOUTS[name], 7_500_000_000, 64)
    assert states.total / BILLION == pytest.approx(PAPER[name], abs=0.05)


def test_the_fastest_launch_file_that_fits_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("7.5B", "--gpus", "64", "--gpu", "A100-80")
    assert main(["plan", *words]) == 0
    assert "A100-80: take accel_configs/zero1.yaml" in capsys.readouterr().out
    assert all((ROOT / f"accel_configs/{name}.yaml").is_file() for name in LAYOUTS)
    assert main(["plan", "70B", "--gpu", "4GiB"]) == 1
    assert "4GiB: nothing fits" in capsys.readouterr().out


@pytest.mark.slow  # two rehearsals
def test_a_config_is_rehearsed_with_its_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "tests/workers"))
    config = tmp_path / "train.yaml"
    config.write_text("task: observed:Llama\nmax_steps: 5\nlr: 1e-3\nmicro_batch_size: 8\n")
    words = (str(config), "--gpu", "24GiB", "--task_settings.layers", "1")
    large = first_row(capsys, *words)
    own = [str(ROOT / f"accel_configs/{name}.yaml") for name in ("hsdp", "single")]
    small = first_row(capsys, *own, *words, "--micro_batch_size", "2")
    assert small["launch file"] == "single", "hsdp is left out: a GPU is no four"
    assert large["launch file"] == "single"
    assert large["parameters"] == small["parameters"]
    (many, unit), (few, same_unit) = (found["activations"].split() for found in (large, small))
    assert unit == same_unit and float(many) == pytest.approx(4 * float(few), rel=0.1)


def test_wrong_words_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    for words, told in (
        (("plan", "no/such/model"), "no/such/model: the file cannot be read"),
        (("plan", "7B", "--micro_batch", "2"), "7B: the file cannot be read: No such file"),
        (("plan", "7B", "--gpu", "H1000"), "'H1000'"),
        (("plan", "7B", "--gpu", "0GiB"), "gpu: '0GiB': "),
        (("plan", "7B", "--gpu", "1GiB"), "gpu: '1GiB': "),
        (
            ("rehearse", "--gpus", "100000000"),
            "gpus: 100000000: must be less than or equal to 16384",
        ),
    ):
        assert main([*words]) == 2
        assert told in capsys.readouterr().err
