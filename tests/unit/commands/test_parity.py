"""``trainer parity``: its command line, its runs and its verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from judged_curves import curve
from launchers import ROOT
from origins import origin, sourced

from trainer import TrainConfig
from trainer.commands import parity
from trainer.commands.nudged import NUDGED as NUDGED_FOLDER
from trainer.commands.parity import run
from trainer.commands.runs import Run
from trainer.launching.request import Request


def test_one_process_gets_the_settings_of_launch_files() -> None:
    config = TrainConfig(task="a:B", max_steps=1)
    plain = Request(
        strategy="ddp",
        strategy_origin=origin("a.yaml:1"),
        mixed_precision=sourced("bf16", "a.yaml:2"),
    )
    clips = replace(
        plain, strategy="zero2", mixed_precision=None, max_grad_norm=sourced(0.5, "ds.json:3")
    )
    words = ["--mixed_precision=bf16", "--max_grad_norm=0.5"]
    assert parity._one_process({"a.yaml": plain, "b.yaml": clips}, config) == words
    said = TrainConfig(task="a:B", max_steps=1, mixed_precision="bf16")
    assert parity._one_process({"a.yaml": plain}, said) == []
    owns = replace(clips, optimizer=sourced({"type": "AdamW"}, "ds.json:9"))
    assert parity._one_process({"a.yaml": plain, "b.yaml": owns}, config) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["no.yaml"], r"no.yaml"),
    ],
)
def test_mistakes_in_the_command_line(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=message):
        run([*words, "--config", "examples/configs/digits_cnn.yaml"])


def test_kept_runs_have_folders_of_the_layouts_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``trainer compare`` names runs by their folders; logs and nudged weights are elsewhere."""
    started: list[str] = []
    kept = tmp_path / "kept"

    def write_run(name: str, launch_file: str | None, words: Sequence[str], folder: Path) -> Run:
        assert folder == kept
        started.append(name)
        gap = 1e-3 if name == "1-ddp" else 0.0
        made = curve(name, *[gap * step for step in range(4)])
        plan = {**made.plan, "micro_batch_size": 1, "accumulation_steps": 1, "world_size": 2}
        return replace(made, plan=plan)

    monkeypatch.setattr(parity, "train", write_run)
    monkeypatch.setattr(parity, "_weights_gap", lambda run, reference, initial: 0.0)
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "examples")
    words = ["accel_configs/ddp.yaml", "accel_configs/fsdp.yaml", "--nudges", "1"]
    assert run([*words, "--config", "examples/configs/digits_cnn.yaml", "--to", str(kept)]) == 1
    assert started == ["0-one-process", "1-ddp", "2-fsdp", "nudged-1"]
    assert (kept / "weights" / f"{NUDGED_FOLDER}1" / "model.safetensors").is_file()
    printed = capsys.readouterr().out
    assert "NOT the same within 1e-05 of loss and norm, 0.01 of the weights" in printed
    assert "1-ddp: differs: loss 1.0e-03 apart at step 2, loss at most 3.0e-03 apart" in printed
