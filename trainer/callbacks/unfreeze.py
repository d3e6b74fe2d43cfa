"""The key ``unfreeze``: layers that are trained from some step on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..hooks import Callback, StepInfo
from ..run import Run


class UnfreezeLayers(Callback):
    """Unfreezes each entry of the config after its step.

    What was unfrozen is in checkpoints with the run itself, which must know it before it reads
    weights and optimizer state.
    """

    def on_start(self, run: Run) -> None:
        """Catch up on what a resumed run should have unfrozen (``at`` was changed)."""
        self._run = run
        self._unfreeze(run)

    def on_step(self, run: Run, info: StepInfo) -> None:
        self._unfreeze(run)

    def _unfreeze(self, run: Run) -> None:
        for layers in run.unfreezing.due(run.step):
            run.unfreeze(layers.patterns)

    def summary(self) -> Mapping[str, Any]:
        return {"unfrozen": self._run.unfreezing.state()}
