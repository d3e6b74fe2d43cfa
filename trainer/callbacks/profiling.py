"""``profile_steps: 10-12``: a torch profiler trace of these steps, and a table of what costs most
in them.
"""

from __future__ import annotations

from typing import Any

import torch

from ..hooks import Callback, StepInfo
from ..run import Run

ROWS = 25


class Profile(Callback):
    """Traces the main process from the end of one step to the end of another.

    Writes ``profile/trace.json.gz`` (for chrome://tracing or ui.perfetto.dev) and
    ``profile/operations.txt``. What surrounds a step (logging, evaluation) is in the trace as well.
    The first step is never traced: it warms up.
    """

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last
        self.profiler: Any = None

    def on_step(self, trainer: Run, info: StepInfo) -> None:
        if not trainer.is_main:
            return
        if self.profiler is not None and (info.step >= self.last or info.is_last):
            with trainer.meter.paused("profile"):
                self._write(trainer)
        elif self.profiler is None and info.step == self.first - 1 and not info.is_last:
            kinds = [torch.profiler.ProfilerActivity.CPU]
            if trainer.accelerator.device.type == "cuda":
                kinds.append(torch.profiler.ProfilerActivity.CUDA)
            self.profiler = torch.profiler.profile(activities=kinds, profile_memory=True)
            self.profiler.start()

    def _write(self, trainer: Run) -> None:
        if trainer.accelerator.device.type == "cuda":
            torch.cuda.synchronize()  # what was started belongs to the steps
        # A collective writes its end into the profiler's record, which is freed below: seen as an
        # abort a step later.
        trainer.agreement.settle()
        self.profiler.stop()
        folder = trainer.directory.path / "profile"
        folder.mkdir(exist_ok=True)
        self.profiler.export_chrome_trace(str(folder / "trace.json.gz"))
        by = (
            "self_device_time_total"
            if trainer.accelerator.device.type == "cuda"
            else "self_cpu_time_total"
        )
        table = self.profiler.key_averages().table(
            sort_by=by, row_limit=ROWS, max_name_column_width=60
        )
        (folder / "operations.txt").write_text(table + "\n", encoding="utf-8")
        text = f"profile of steps {self.first} to {self.last}: {folder}"
        trainer.directory.line(text)
        print(text, flush=True)
        self.profiler = None
