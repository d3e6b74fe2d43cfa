"""``trainer parity``: its words, and what it reads from files and logs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from launchers import ROOT
from one_process import fit, losses
from origins import origin, sourced
from safetensors.torch import load_file

from trainer import TrainConfig
from trainer.commands import parity
from trainer.commands.nudged import NUDGED as NUDGED_FOLDER
from trainer.commands.nudged import UNITS, FirstWeights, is_nudged
from trainer.commands.parity import run, single_process_settings
from trainer.commands.runs import Run, read_run
from trainer.commands.trials import BOUNDS, Sameness, Trial, judge, last_error
from trainer.config.load import Loaded
from trainer.launching.request import Request


def test_one_process_is_told_what_only_the_files_say() -> None:
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


def test_thelast_error_is_found() -> None:
    assert last_error("step 1\n\nrank 0: train.yaml:3: lr: -1: must be above 0\n=====\n") == (
        "rank 0: train.yaml:3: lr: -1: must be above 0"
    )
    assert (
        last_error("Traceback (most recent call last):\n  x\nValueError: no\nmore of it\n")
        == "ValueError: no"
    )
    assert last_error("killed\n\n") == "killed"
    assert last_error("") == ""
    report = "Traceback (most recent call last):\nChildFailedError: \nRoot Cause (first observed failure):\n[0]:\n  rank : 0"
    assert (
        last_error(f"{report}\n  traceback : a.yaml:5: lr: -1: no\n====\n")
        == "a.yaml:5: lr: -1: no"
    )
    thrown = "Traceback (most recent call last):\n  x\n  ValueError: no\n"
    assert last_error(f"{report}\n  traceback : {thrown}\n====\n") == "ValueError: no"


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
def test_wrong_words(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(ValueError, match=message):
        run([*words, "--config", "examples/configs/digits_cnn.yaml"])


def curve(name: str, *gaps: float, norms: tuple[float, ...] = ()) -> Run:
    """A run that is so far from the reference, relatively, at each step."""
    norms = norms or (0.0,) * len(gaps)
    rows = [
        {"step": at, "loss": 1 + gap, "grad_norm": 2 * (1 + norm)}
        for at, (gap, norm) in enumerate(zip(gaps, norms, strict=True), 1)
    ]
    return Run(name=name, path=name, plan={"mixed_precision": "no"}, rows=rows)


REFERENCE = curve("one process", *[0.0] * 8)
KINK = curve(
    "ddp", 0, 0, 1e-7, 0, 1e-5, 1e-4, 1e-3, 1e-2, norms=(0, 0, 0, 2e-4, 1e-5, 7e-4, 1e-3, 2e-2)
)
NUDGED = curve(
    "nudged",
    3e-7,
    1e-7,
    1e-6,
    1e-5,
    1e-4,
    3e-4,
    1e-3,
    5e-3,
    norms=(1e-6, 4e-6, 1e-4, 1e-3, 0, 0, 0, 1e-2),
)
STEADY = curve("nudged", *[1e-6] * 8, norms=(2e-6,) * 8)
BY_RANK = curve(
    "ddp", 0, 1e-4, 1e-3, 3e-3, 3e-3, 3e-3, 3e-3, 5e-3, norms=(2e-2,) * 8
)  # the gradient is wrong at once
FIRST = curve("ddp", *[2e-2] * 8)  # so is the loss
LOST = curve("ddp", 0, float("nan"), 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("run", "nudged", "expected"),
    [
        (curve("ddp", *[5e-6] * 8), [], Sameness.SAME),
        (KINK, [], Sameness.UNKNOWN),
        (KINK, [NUDGED], Sameness.ROUNDING),
        (KINK, [STEADY, NUDGED], Sameness.ROUNDING),
        (KINK, [STEADY], Sameness.DIFFERS),
        (BY_RANK, [NUDGED], Sameness.DIFFERS),
        (FIRST, [NUDGED], Sameness.DIFFERS),
        (LOST, [NUDGED], Sameness.DIFFERS),
        (curve("ddp", *[0.0] * 7, 1.0), [], Sameness.DIFFERS),
    ],
)
def test_what_strays_no_further_than_rounding_leads_is_no_fault(
    run: Run, nudged: list[Run], expected: Sameness
) -> None:
    assert judge(run, REFERENCE, ("loss", "grad_norm"), BOUNDS["no"], nudged) is expected


def test_runs_without_a_common_step_are_not_judged() -> None:
    assert judge(Run(name="a", path="a"), REFERENCE, ("loss",), BOUNDS["no"], []) is None


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
def test_the_verdict_and_when_the_reference_is_nudged(
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


def test_a_first_loss_that_differs_is_not_asked_of_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(parity, "_weights_gap", lambda run, reference, initial: 1e-3)
    for apart in (FIRST, LOST):
        assert not parity.Verdict(runs=[REFERENCE, apart], initial={}, bounds=BOUNDS["no"]).is_open


@pytest.mark.usefixtures("fresh_accelerate")
def test_nudged_weights_are_some_units_off_and_a_run_begins_with_them(tmp_path: Path) -> None:
    loaded = Loaded(config=TrainConfig(task="resuming:Odd", max_steps=2), origins={})
    first = FirstWeights.of(loaded)
    for seed in (1, 2):
        first.write_nudged(tmp_path / f"{NUDGED_FOLDER}{seed}", seed)
    one, two = (
        load_file(tmp_path / f"{NUDGED_FOLDER}{seed}" / "model.safetensors") for seed in (1, 2)
    )
    for name in first.parameters.keys() & one.keys():
        value = first.parameters[name]
        if not first.tensors[name].requires_grad:
            assert torch.equal(one[name], value)
            continue
        off = (one[name] - value) / (value.nextafter(torch.tensor(torch.inf)) - value)
        assert off.abs().max() <= 2 * UNITS and (off.abs() >= UNITS / 2).float().mean() > 0.9
        assert not torch.equal(one[name], two[name]) or value.numel() < 8
    trainer = fit(tmp_path / "run", weights=str(tmp_path / f"{NUDGED_FOLDER}1"), max_steps=1)
    plain = fit(tmp_path / "plain", max_steps=1)
    [loss], [usual] = losses(trainer.directory.path).values(), losses(plain.directory.path).values()
    assert loss == pytest.approx(usual, rel=1e-4) and is_nudged(read_run(trainer.directory.path))
    assert not is_nudged(read_run(plain.directory.path))


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
