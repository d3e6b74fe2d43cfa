"""``trainer plan`` as a command: what fits, and mistakes."""

from __future__ import annotations

from pathlib import Path

import pytest
from planned import by_name, plan

from trainer.commands.cli import main
from trainer.reporting.gpus import gpu_of


def test_parameter_count_of_the_zero_paper(capsys: pytest.CaptureFixture[str]) -> None:
    told = plan(capsys, "7.5B", "--gpus", "64", "--gpu", "A100-80")
    rows = by_name(told)
    paper = {
        name: round(rows[name, "none"]["paper"] / 1e9, 1)
        for name in ("ddp", "zero1", "zero2", "zero3")
    }
    assert paper == {"ddp": 120.0, "zero1": 31.4, "zero2": 16.6, "zero3": 1.9}
    assert not rows["ddp", "none"]["fits"] and rows["zero1", "none"]["fits"]
    assert (
        told["recommended"].startswith("recommended: zero1")
        and "ddp: faster, but too large" in told["recommended"]
    )


def test_nothing_fits_and_nothing_is_written(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = plan(capsys, "70B", "--gpus", "2", "--gpu", "4GiB", code=1)
    assert told["recommended"].startswith("nothing fits on 4GiB of memory")
    assert main(["plan", "70B", "--gpu", "4", "--write", str(tmp_path / "a.yaml")]) == 2
    assert "nothing to write" in capsys.readouterr().err and not (tmp_path / "a.yaml").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["7.5B", "--gpu", "H1000"],
            "gpu: 'H1000': not a GPU known here, nor memory such as 24GiB; did you mean 'H100'?",
        ),
        (["7.5B", "--lora", "8"], "needs the shapes of the layers"),
        (["no/such/model"], "what: 'no/such/model': neither a parameter count"),
    ],
)
def test_mistakes_in_the_command_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", *words]) == 2
    assert said in capsys.readouterr().err


def test_gpu_by_name_or_by_memory() -> None:
    assert gpu_of("24GiB").gib == gpu_of("24").gib == 24 and gpu_of("h100").teraflops == 989
    assert gpu_of("h100-nvl").gib == 94
