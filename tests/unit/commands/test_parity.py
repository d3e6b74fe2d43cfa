"""``trainer parity``: its command line, its runs and its verdict."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from judged_curves import KINK, REFERENCE, curve
from launchers import ROOT
from origins import origin, sourced

from trainer import TrainConfig
from trainer.commands import cli, parity
from trainer.commands.curves import EXACT
from trainer.launching.request import Request


def test_one_process_gets_the_settings_of_launch_files() -> None:
    config = TrainConfig(task="a:B", max_steps=1)
    plain = Request(
        strategy="ddp",
        strategy_origin=origin("a.yaml:1"),
        settings={"mixed_precision": sourced("bf16", "a.yaml:2")},
    )
    clips = replace(plain, settings={"max_grad_norm": sourced(0.5, "ds.json:3")})
    words = ["--mixed_precision=bf16", "--max_grad_norm=0.5"]
    assert parity._one_process([plain, clips], config) == words
    said = TrainConfig(task="a:B", max_steps=1, mixed_precision="bf16")
    assert parity._one_process([plain], said) == []
    owns = replace(clips, settings={"optimizer": sourced("adamw", "ds.json:9")})
    assert parity._one_process([plain, owns], config) is None


def test_the_verdict_does_not_need_plotly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "plotly.subplots", None)
    plan = {"micro_batch_size": 1, "accumulation_steps": 1, "world_size": 2}
    alone = curve("a", 0.0)._replace(plan=plan)
    gaps = {"a": {"loss": {1: 0.0}, "grad_norm": {1: 0.0}, "weights": {1: 0.0}}}
    assert parity._report([alone], gaps, {"a": ("reference", "")}, EXACT, str(tmp_path)) == 0
    assert "compare.html': needs plotly: pip install" in capsys.readouterr().out


def test_without_nudged_runs_a_run_beyond_the_bounds_is_unknown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = {"micro_batch_size": 1, "accumulation_steps": 1, "world_size": 2, "precision": {}}
    trained = iter([run._replace(plan=plan) for run in (REFERENCE, KINK)])
    monkeypatch.setattr(parity, "train", lambda *_: next(trained))
    monkeypatch.setattr(parity, "_weights_gap", lambda *_: 0.0)
    monkeypatch.chdir(ROOT)
    words = ["accel_configs/ddp.yaml", "examples/configs/digits_cnn.yaml", "--nudges", "0"]
    assert cli.main(["parity", *words]) == 1
    said = capsys.readouterr().out
    assert re.search(r"^ddp .* unknown$", said, re.MULTILINE) and "NOT the same within" in said
    assert "ddp: unknown: grad_norm 2.0e-04 apart at step 4" in said
