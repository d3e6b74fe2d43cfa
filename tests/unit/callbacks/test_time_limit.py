"""``max_time`` asks for the end once, on the main process, when its time has passed."""

from __future__ import annotations

import time
from pathlib import Path

from brought_tasks import Plain
from from_launcher import configured
from launchers import json_in
from one_process import log_of, steps

from trainer import Trainer


def test_max_time_ends_a_run_with_checkpoint_and_evaluation(tmp_path: Path) -> None:
    config = configured(tmp_path, max_steps=100_000, max_time="1s", log_every=1000)
    trainer = Trainer(Plain(), config)
    trainer.run.meter.born = time.perf_counter()  # this process is older
    evaluation = trainer.fit()

    step = trainer.run.step
    assert 1.0 <= trainer.run.meter.seconds < 6.0
    assert 1 < step < 100_000 and evaluation and steps(tmp_path) == [step]
    summary = json_in(tmp_path / "summary.json")
    assert (summary["stopped_by"], summary["steps"]) == ("max_time 1s has passed", step)
    assert f"stopped at step {step} of 100000 (max_time 1s has passed)" in log_of(tmp_path)
