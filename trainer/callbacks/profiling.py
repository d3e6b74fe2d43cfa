"""The key ``profile_steps: 10-12``: a trace of these steps, and a table of the costs."""

from __future__ import annotations

import torch

from ..hooks import Callback, StepInfo
from ..run import Run


class Profile(Callback):
    """Traces the main process from the end of step ``first - 1`` to the end of step ``last``.

    Writes ``profile/trace.json.gz`` (for chrome://tracing or ui.perfetto.dev) and
    ``profile/operations.txt``. The first step is never traced, since caches are cold.
    """

    profiler: torch.profiler.profile | None = None

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last

    def on_step(self, run: Run, info: StepInfo) -> None:
        if not run.is_main:
            return

        if not self.profiler:
            if info.step == self.first - 1 and not info.is_last:
                # Not by accelerator.profile(), which waits for all ranks at the end: only the main
                # process profiles.
                self.profiler = torch.profiler.profile(profile_memory=True, acc_events=True)
                self.profiler.start()
        elif info.step >= self.last or info.is_last:
            with run.meter.paused("profile"):
                self._write(run, self.profiler)
                self.profiler = None

    def _write(self, run: Run, profiler: torch.profiler.profile) -> None:
        """Stop the profiler, which waits for the GPU, and write the trace and the table."""
        # A pending collective writes to the profiler's record, which stop() frees: this was seen to
        # abort the process a step later.
        run.agreement.settle()
        profiler.stop()

        folder = run.directory.path / "profile"
        folder.mkdir(exist_ok=True)
        profiler.export_chrome_trace(f"{folder}/trace.json.gz")

        sort_by = "self_device_time_total" if profiler.use_device else "self_cpu_time_total"
        (folder / "operations.txt").write_text(profiler.key_averages().table(sort_by, row_limit=25))
        run.say(f"profile of steps {self.first} to {self.last}: {folder}")
