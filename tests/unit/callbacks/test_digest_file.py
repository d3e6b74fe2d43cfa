"""digests.jsonl of a run, and facts that change bits at a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from launchers import json_lines
from resuming import Odd
from same_bits import Cross

from trainer import DataError, TrainConfig, Trainer


def train(folder: Path, task: Any = None, **settings: Any) -> str:
    given = {"max_steps": 3, "stop_at": 2, "micro_batch_size": 2, "global_batch_size": 4}
    given |= {"same_bits": True, "lr": 0.01, "keep_last": 0, **settings}
    config = TrainConfig(task="same_bits:Cross", output_dir=str(folder), **given)
    trainer = Trainer(task or Cross(), config)
    trainer.fit()
    trainer.run.close()
    return (folder / "log.txt").read_text()


def test_each_step_has_a_row_and_a_resume_tells_other_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = train(tmp_path, keep_last=1)
    assert "whole gradients add up in float64, at most 76.4 KiB per rank" in log
    head, *rows = json_lines(tmp_path / "digests.jsonl")
    assert head["facts"]["threads"] == 1 and len(head["tensors"]) == 37
    assert [row["step"] for row in rows] == [1, 2]
    assert {len(row["micro_batches"]) for row in rows} == {2}
    assert {len(row[key]) for row in rows for key in ("gradients", "weights")} == {37}

    own = torch.backends.cpu.get_cpu_capability()
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "SOMETHING")
    log = train(tmp_path, keep_last=1, stop_at=None, resume="auto")
    changed = "changed since the checkpoint, and bits may follow: cpu kernels"
    assert f'{changed}: "{own}" -> "SOMETHING"' in log
    assert [row.get("step") for row in json_lines(tmp_path / "digests.jsonl")[-2:]] == [None, 3]


def test_a_buffer_that_counts_forward_passes_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="same_bits: forward passes change forwards"):
        train(tmp_path, Odd())
