"""Nothing that a training keeps grows with its steps."""

from __future__ import annotations

import contextlib
import gc
import os
import sys
from pathlib import Path

from brought_tasks import Plain

from trainer import TrainConfig, Trainer


def test_steps_leave_nothing_in_memory(tmp_path: Path) -> None:
    """Each is logged. What settles has settled by step 1,000; a number kept of every step would be
    500 blocks.
    """
    settings = {"max_steps": 1600, "log_every": 1, "keep_last": 0}
    config = TrainConfig(task="brought_tasks:Plain", output_dir=str(tmp_path / "run"), **settings)
    trainer = Trainer(Plain(), config)
    blocks = {}
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):  # what captures lines keeps them
        for info in trainer.steps():
            if info.step in (1000, 1500):
                gc.collect()
                blocks[info.step] = sys.getallocatedblocks()
            if info.step == 1500:
                break
    trainer.run.close()
    assert blocks[1500] - blocks[1000] < 200
