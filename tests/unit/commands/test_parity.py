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
from trainer.commands.finished_runs import Run
from trainer.commands.parity import run
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
    assert parity._one_process([plain, clips], config) == words
    said = TrainConfig(task="a:B", max_steps=1, mixed_precision="bf16")
    assert parity._one_process([plain], said) == []
    owns = replace(clips, optimizer=sourced({"type": "AdamW"}, "ds.json:9"))
    assert parity._one_process([plain, owns], config) is None


@pytest.mark.parametrize(
    ("nudges", "nudged_gaps", "code", "verdict"),
    [
        (0, [], 1, "1-ddp: unknown: loss 1.0e-03 apart at step 2, loss at most 3.0e-03 apart"),
        (1, [0.0], 1, "1-ddp: differs: loss 1.0e-03 apart at step 2, loss at most 3.0e-03 apart"),
        (3, [0.0, 1e-3], 0, "the same within what rounding does to this model, not within 1e-05"),
        (3, [None], 1, "nudged-1: no memory"),
    ],
)
def test_kept_runs_and_their_verdicts(
    nudges: int,
    nudged_gaps: list[float | None],
    code: int,
    verdict: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Kept runs have names of the layouts. A nudged run starts only as long as a verdict is open."""
    kept = tmp_path / "kept"
    kept.mkdir()
    nudged = [f"nudged-{number}" for number, _ in enumerate(nudged_gaps, 1)]
    gaps = {"0-one-process": 0.0, "1-ddp": 1e-3, "2-fsdp": 0.0}
    gaps |= dict(zip(nudged, nudged_gaps, strict=True))
    launch_files = [None, "accel_configs/ddp.yaml", "accel_configs/fsdp.yaml", None, None, None]
    files = dict(zip(gaps, launch_files, strict=False))
    started: dict[str, int] = {}

    def write_run(
        name: str, launch_file: str | None, seed: int, words: Sequence[str], folder: Path
    ) -> Run:
        assert folder == kept and launch_file == files[name]
        started[name] = seed
        gap = gaps[name]
        if gap is None:
            return Run(name=name, path=name, error="no memory")
        made = curve(name, *[gap * step for step in range(4)])
        plan = {**made.plan, "micro_batch_size": 1, "accumulation_steps": 1, "world_size": 2}
        return replace(made, plan=plan)

    monkeypatch.setattr(parity, "train", write_run)
    monkeypatch.setattr(parity, "_weights_gap", lambda *_: 0.0)
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(ROOT / "examples")
    words = ["accel_configs/ddp.yaml", "accel_configs/fsdp.yaml", f"--nudges={nudges}"]
    words += ["--config", "examples/configs/digits_cnn.yaml", "--to", str(kept)]
    assert run(words) == code
    seeds = {name: number for number, name in enumerate(nudged, 1)}
    assert started == {"0-one-process": 0, "1-ddp": 0, "2-fsdp": 0, **seeds}
    assert list(started) == list(gaps)
    printed = capsys.readouterr().out
    assert ("NOT the same within 1e-05 of loss and norm, 0.01 of the weights" in printed) == code
    assert verdict in printed
    page = kept / "compare.html"
    assert printed.endswith(f"curves: {page}\n") and verdict in page.read_text()
