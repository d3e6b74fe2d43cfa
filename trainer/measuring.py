"""The values of evaluation sets: of which sets, of each over all ranks, and the newest of all."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from .building.evaluation import MeasuredSet, place_of
from .errors import DataError
from .losses import weighted
from .metrics import Layout, WeightedSums, agreed
from .text import did_you_mean

if TYPE_CHECKING:
    from .distributed.agreement import Agreement
    from .strategies import Strategy
    from .task import Task


class Measurement:
    """The values of one evaluation set: add each of its batches, then read them.

    Args:
        strategy: prepared; its model is in evaluation mode.
        agreement: of the ranks.
    """

    def __init__(
        self, task: Task, strategy: Strategy, agreement: Agreement, evaluation_set: MeasuredSet
    ) -> None:
        self._task = task
        self._strategy = strategy
        self._agreement = agreement
        self._set = evaluation_set

        device = strategy.accelerator.device
        metrics = evaluation_set.build_metrics()
        self._sums = WeightedSums({name: metric.to(device) for name, metric in metrics.items()})

    def add(self, batch: Any, examples: int) -> None:
        """Compute the model's values of one batch. Collective: call on every rank.

        Args:
            examples: how many the batch has; 0 for one that does not count.
        """
        batch = self._strategy.to_device(batch)
        model = self._strategy.model
        if self._set.counts_examples:
            # The loader knows how many there are. The first tensor of a batch need not begin with
            # them, so the default weight is not asked.
            loss = self._task.training_step(model, batch)
            values: Mapping[str, Any] = weighted(loss, float(examples))
        else:
            values = self._set.evaluation_step(model, batch)
        self._sums.add(values, counts=examples > 0)

    def values(self) -> dict[str, float]:
        """Return the values over all batches of all ranks. Collective: call on every rank."""
        layout = self._layout_of_all_ranks()
        reduced = self._sums.reduce(self._strategy.accelerator, layout)
        means = self._task.summarize(reduced)
        return {f"{self._set.prefix}{name}": float(value) for name, value in means.items()}

    def _layout_of_all_ranks(self) -> Layout:
        """Return what all ranks together have added, and drop torchmetrics of another step.

        Collective: call on every rank.
        """
        of_ranks = self._agreement.gather((self._sums.layout(), self._sums.named))
        if self._set.has_own_step:
            named_anywhere: set[str] = set()
            for _, named in of_ranks:
                named_anywhere |= named
            self._sums.keep(named_anywhere)
        return agreed(layout for layout, _ in of_ranks)


def chosen_sets(
    sets: Mapping[str, MeasuredSet], names: Collection[str] | str | None
) -> list[MeasuredSet]:
    """Return the evaluation sets of these names, in the order of the task's data.

    Args:
        sets: of a run, by name.
        names: a single one may be text; None for all.

    Raises:
        DataError: there is none at all, or none of such a name.
    """
    if not sets:
        raise DataError(f"{place_of('')} is None: there is nothing to measure on")
    if names is None:
        return list(sets.values())
    if isinstance(names, str):
        names = [names]

    for name in names:
        if name not in sets:
            hint = did_you_mean(name, list(sets))
            raise DataError(f"Data.evaluation has no set {name!r}; {hint}")
    return [chosen for name, chosen in sets.items() if name in names]


def newest_values(
    sets: Mapping[str, MeasuredSet],
    measured: Mapping[str, Mapping[str, float]],
    before: Mapping[str, float],
) -> dict[str, float]:
    """Return the values of the sets that were measured now, and those that the others had before.

    Args:
        sets: of a run, by name.
        measured: the values of each set that was measured, by its name.
        before: the newest values until now, of all sets together.
    """
    newest: dict[str, float] = {}
    for name, evaluation_set in sets.items():
        if name in measured:
            newest |= measured[name]
            continue
        for metric, value in before.items():
            if metric.startswith(evaluation_set.prefix):
                newest[metric] = value
    return newest
