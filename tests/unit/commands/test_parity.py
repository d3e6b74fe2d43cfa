"""``trainer parity``: its command line, its runs and its verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judged_curves import BY_RANK, FIRST, KINK, LOST, NUDGED, REFERENCE, STEADY, curve
from launchers import ROOT
from origins import origin, sourced

from trainer import TrainConfig
from trainer.commands import parity
from trainer.commands.nudged import NUDGED as NUDGED_FOLDER
from trainer.commands.parity import run, single_process_settings
from trainer.commands.runs import Run
from trainer.commands.trials import BOUNDS, Trial
from trainer.config.load import Loaded
from trainer.launching.request import Request


def test_single_process_gets_the_settings_of_launch_files() -> None:
    config = Loaded(config=TrainConfig(task="a:B", max_steps=1), origins={})
    plain = Request(
        strategy="ddp",
        strategy_origin=origin("a.yaml:1"),
        mixed_precision=sourced("bf16", "a.yaml:2"),
    )
    clips = replace(
        plain, strategy="zero2", mixed_precision=None, max_grad_norm=sourced(0.5, "ds.json:3")
    )
    assert single_process_settings({"a.yaml": plain, "b.yaml": clips}, config) == {
        "mixed_precision": "bf16",
        "max_grad_norm": "0.5",
    }
    said = Loaded(config=TrainConfig(task="a:B", max_steps=1, mixed_precision="bf16"), origins={})
    assert single_process_settings({"a.yaml": plain}, said) == {}
    owns = replace(clips, optimizer=sourced({"type": "AdamW"}, "ds.json:9"))
    assert single_process_settings({"a.yaml": plain, "b.yaml": owns}, config) is None


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["accel_configs/ddp.yaml", "--script", "no.py"],
            r"script: 'no.py': does not exist; give the script that",
        ),
        (["accel_configs/ddp.yaml", "--to", "."], r"to: '\.': exists already"),
        (["accel_configs/ddp.yaml", "--global_batch_size", "63"], r"global_batch_size: 63"),
        (
            ["accel_configs/ddp.yaml", "--global_batch_size", "63", "--micro_batch_size", "21"],
            r"ddp.yaml:\d+.*: num_processes: 2: cannot cut the global batch of 63; set --global_batch_size",
        ),
        (["no.yaml"], r"no.yaml"),
    ],
)
def test_mistakes_in_the_command_line(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=message):
        run([*words, "--config", "examples/configs/digits_cnn.yaml"])


@pytest.mark.parametrize(
    ("run", "nudged", "of_weights", "answer"),
    [
        (
            KINK,
            [NUDGED],
            {"ddp": 3e-2, "nudged": 1e-2},
            "the same within what rounding does to this model: not within",
        ),
        (
            KINK,
            [NUDGED],
            {"ddp": 3e-2, "nudged": 1e-3},
            "NOT the same within 1e-05 of loss and norm, 0.01 of the we",
        ),
        (BY_RANK, [NUDGED], {"ddp": 1e-3, "nudged": 1e-3}, "NOT the same within"),
        (
            STEADY,
            [],
            {"nudged": 1e-6},
            "the same within 1e-05 of loss and norm, 0.01 of the weights",
        ),
    ],
)
def test_verdict_and_when_nudged_runs_are_needed(
    run: Run,
    nudged: list[Run],
    of_weights: dict[str, float],
    answer: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(
        parity, "_weights_gap", lambda run, reference, initial: of_weights[run.name]
    )
    verdict = parity.Verdict(runs=[REFERENCE, run], initial={}, bounds=BOUNDS["no"])
    assert verdict.is_open == bool(nudged), "a healthy run costs no other"
    verdict.nudged += nudged
    splits = {
        name: parity.Split(strategy="ddp", world=2, micro_batch=1, accumulation=1)
        for name in ("one process", "ddp")
    }
    splits["nudged"] = splits["ddp"]
    assert verdict.report(splits) == answer.startswith("the same")
    assert answer in capsys.readouterr().out


def test_different_first_loss_needs_no_nudged_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parity, "_weights_gap", lambda run, reference, initial: 1e-3)
    for apart in (FIRST, LOST):
        assert not parity.Verdict(runs=[REFERENCE, apart], initial={}, bounds=BOUNDS["no"]).is_open


@pytest.mark.parametrize(
    ("facts", "is_named"),
    [
        ({"steps_per_epoch": 2, "train_samples": 7, "global_batch_size": 4}, True),
        ({"steps_per_epoch": 2, "train_samples": 8, "global_batch_size": 4}, False),
        ({"steps_per_epoch": 3, "train_samples": 10, "global_batch_size": 4}, False),
        ({"steps_per_epoch": None, "train_samples": None, "global_batch_size": 4}, False),
    ],
)
def test_run_that_differs_from_a_short_step_on_is_told_so(
    facts: dict[str, Any],
    is_named: bool,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(parity, "_weights_gap", lambda run, reference, initial: 1e-3)
    reference = replace(REFERENCE, plan={**REFERENCE.plan, **facts})
    verdict = parity.Verdict(runs=[reference, BY_RANK], initial={}, bounds=BOUNDS["no"])
    split = parity.Split(strategy="ddp", world=2, micro_batch=1, accumulation=1)
    # From step 1 on by the norm: a short step explains nothing.
    assert not verdict.report({"one process": split, "ddp": split})
    assert "ddp: beyond the bound from step 1 on\n" in capsys.readouterr().out

    verdict.runs = [reference, curve("ddp", 0, 1e-3, 1e-3, 3e-3, 3e-3, 3e-3, 3e-3, 5e-3)]
    assert not verdict.report({"one process": split, "ddp": split})
    printed = capsys.readouterr().out
    assert "ddp: beyond the bound from step 2 on\n" in printed
    assert ("a short step, at the end of an epoch" in printed) == is_named


def test_kept_runs_have_folders_of_the_layouts_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As ``trainer compare`` names runs by their folders; logs and nudged weights are elsewhere."""
    started: list[Trial] = []

    def write_run(trial: Trial) -> Run:
        started.append(trial)
        gap = 1e-3 if trial.name.endswith("ddp.yaml") else 0.0
        made = curve(trial.name, *[gap * step for step in range(4)])
        return replace(made, path=str(trial.output))

    monkeypatch.setattr(Trial, "run", write_run)
    monkeypatch.setattr(parity, "_weights_gap", lambda run, reference, initial: 0.0)
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "examples")
    words = ["accel_configs/ddp.yaml", "accel_configs/fsdp.yaml", "--nudges", "1"]
    kept = tmp_path / "kept"
    assert run([*words, "--config", "examples/configs/digits_cnn.yaml", "--to", str(kept)]) == 1
    names = ["0-one-process", "1-ddp", "2-fsdp", "nudged-1"]
    assert [trial.output for trial in started] == [kept / "runs" / name for name in names]
    assert [trial.log for trial in started] == [kept / "logs" / f"{name}.txt" for name in names]
    assert (kept / "weights" / f"{NUDGED_FOLDER}1" / "model.safetensors").is_file()
