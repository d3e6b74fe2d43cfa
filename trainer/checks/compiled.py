"""Models that are to be compiled, and of which nothing was."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import LaunchError
from ..hooks import Callback, StepInfo
from ..run import Run
from ..strategies.compiled import graphs_of


class CompiledGraphs(Callback):
    """Counts the graphs that were compiled of the model, behind the first step.

    ``torch.compile`` silently runs what it skips operation by operation: the numbers are the same,
    and the speed is that of ``compile: false``.
    """

    def __init__(self) -> None:
        self._counts: list[int] = []  # of all ranks

    def on_step(self, run: Run, info: StepInfo) -> None:
        """Raise ``LaunchError`` on every rank where one of them has compiled nothing."""
        is_made_up = info.update is None
        if self._counts or is_made_up or not run.plan.compile:
            return

        self._counts = run.agreement.gather(graphs_of(run.model))
        without = [str(rank) for rank, count in enumerate(self._counts) if count == 0]
        if without:
            raise LaunchError(
                f"compile is on, but in the first step 0 graphs of the model were compiled on rank "
                f"{', '.join(without)}: all of it ran operation by operation; TORCH_LOGS=dynamo "
                "says what torch.compile skips (TORCH_COMPILE_DISABLE must not be set), or set "
                "compile: false, and take dynamo_config out of the launch file"
            )
        run.say(f"compile: {_graphs(self._counts)}")

    def summary(self) -> Mapping[str, Any]:
        """Return the graphs of each rank, where the model is compiled."""
        return {"compiled_graphs": self._counts} if self._counts else {}


def _graphs(counts: Sequence[int]) -> str:
    """Return how many graphs the ranks have compiled, in words."""
    least = min(counts)
    most = max(counts)
    number = f"{least} to {most}"
    if least == most:
        number = str(most)
    noun = "graph" if most == 1 else "graphs"
    ranks = " on each rank" if len(counts) > 1 else ""
    return f"{number} {noun} of the model in the first step{ranks}"
