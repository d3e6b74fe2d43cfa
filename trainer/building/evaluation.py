"""The sets that a run measures on: those of ``Data.evaluation``, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..config.interval import Interval, check_interval, interval_of
from ..data.batches import Layout, is_stream, sized
from ..data.evaluation import EvaluationBatches
from ..errors import DataError, Origin, Problem
from ..task import Data, EvaluationSet, Task
from ..text import did_you_mean, kind_of, listed

if TYPE_CHECKING:
    from torch import nn

    from ..metrics import Metric

UNNAMED = ""  # the name of a single set


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredSet:
    """A set to measure on, as a run needs it. Iterate it for ``(batch, examples)``.

    Every rank gets as many batches, in the order of the data; one of 0 examples does not count.

    Args:
        name: as in ``Data.evaluation``; "" for a single set.
        batches: those of this rank.
        every: how often it is measured; None: at the end of training.
        evaluation_step: the metrics of one batch.
        build_metrics: makes torchmetrics by name.
        has_own_step: whether ``evaluation_step`` is not the task's. Then it may leave out some of
            the task's torchmetrics.
        counts_examples: whether a mean of ``evaluation_step`` is over the examples of its batch.
    """

    name: str
    batches: EvaluationBatches
    every: Interval | None
    evaluation_step: Callable[[nn.Module, Any], Mapping[str, Any]]
    build_metrics: Callable[[], Mapping[str, Metric]]
    has_own_step: bool
    counts_examples: bool

    def __iter__(self) -> Iterator[tuple[Any, int]]:
        return iter(self.batches)

    @property
    def prefix(self) -> str:
        """Return what the names of its values begin with."""
        return prefix_of(self.name)

    def is_due_at(self, step: int) -> bool:
        """Return whether it is measured at a step that is not the last one."""
        return self.every is not None and self.every.is_due_at(step)


def prefix_of(name: str) -> str:
    """Return what the names of a set's values begin with: ``eval/``, or ``eval/clean/``."""
    return f"eval/{name}/" if name else "eval/"


def place_of(name: str) -> str:
    """Return where a set is in a task's data, for messages."""
    return f"Data.evaluation[{name!r}]" if name else "Data.evaluation"


def sets_of(data: Data) -> dict[str, EvaluationSet]:
    """Return the sets to measure on, by name: none, a single one named "", or several.

    Raises:
        DataError: a name, an interval or a set is none.
    """
    if data.evaluation is None:
        return {}
    if not _are_several(data.evaluation):
        return {UNNAMED: _checked(UNNAMED, data.evaluation)}

    if not data.evaluation:
        raise DataError("Data.evaluation holds no set: give some by name, or None")
    for name in data.evaluation:
        _check_name(name)
    return {name: _checked(name, given) for name, given in data.evaluation.items()}


def _are_several(given: Any) -> bool:
    """Return whether these are sets by name. A mapping with the key 0 is a data set."""
    return isinstance(given, Mapping) and 0 not in given


def _check_name(name: Any) -> None:
    """Raise ``DataError`` for a name that cannot be a part of the names of metrics."""
    if not isinstance(name, str):
        raise DataError(f"Data.evaluation: {name!r}: the name of a set must be text")
    if not name.strip() or "/" in name or not name.isprintable():
        rule = "the name of a set must not be empty, and have no slash: metrics are eval/name/loss"
        raise DataError(f"Data.evaluation: {name!r}: {rule}")


def _checked(name: str, given: Any) -> EvaluationSet:
    """Return a set as an ``EvaluationSet``; raise ``DataError`` where it is none."""
    chosen = given if isinstance(given, EvaluationSet) else EvaluationSet(given)
    place = place_of(name)
    if isinstance(chosen.items, EvaluationSet) or chosen.items is None:
        raise DataError(f"{place} holds {kind_of(chosen.items)} where a data set belongs")
    if chosen.every is not None:
        try:
            check_interval(chosen.every)
        except ValueError as error:
            raise DataError(f"{place}: every: {chosen.every!r}: {error}") from None
    return chosen


def sizes_of(data: Data) -> int | dict[str, int | None] | None:
    """Count the samples to measure on: 0 without a set, None for a stream, by name for several.

    Raises:
        DataError: a set is empty.
    """
    sizes: dict[str, int | None] = {}
    for name, chosen in sets_of(data).items():
        field = place_of(name).removeprefix("Data.")
        sizes[name] = None if is_stream(chosen.items) else sized(chosen.items, field)

    if not sizes:
        return 0
    if list(sizes) == [UNNAMED]:
        return sizes[UNNAMED]
    return sizes


def measured_sets(
    task: Task,
    data: Data,
    layout: Layout,
    *,
    batch_size: int,
    every: Mapping[str, Interval | None] = MappingProxyType({}),
    workers: int = 0,
    pin_memory: bool = False,
    gather: Callable[[int], list[int]] = lambda number: [number],
) -> dict[str, MeasuredSet]:
    """Return the sets of a run by name, with what the task and the config give to all of them.

    Args:
        batch_size: samples of one rank in one batch.
        every: how often each set is measured, see ``intervals_of``.
        workers, pin_memory, gather: as of ``EvaluationBatches``.

    Raises:
        DataError: a name is wrong.
    """
    task_has_own_step = type(task).evaluation_step is not Task.evaluation_step
    task_has_own_weight = type(task).weight is not Task.weight

    measured = {}
    for name, chosen in sets_of(data).items():
        batches = EvaluationBatches(
            chosen.items,
            layout,
            batch_size=batch_size,
            collate=chosen.collate or data.collate,
            workers=workers,
            pin_memory=pin_memory,
            gather=gather,
            name=place_of(name),
        )
        has_own_step = chosen.evaluation_step is not None
        measured[name] = MeasuredSet(
            name=name,
            batches=batches,
            every=every.get(name),
            evaluation_step=chosen.evaluation_step or task.evaluation_step,
            build_metrics=chosen.build_metrics or task.build_metrics,
            has_own_step=has_own_step,
            counts_examples=not (has_own_step or task_has_own_step or task_has_own_weight),
        )
    return measured


def intervals_of(
    data: Data, eval_every: Interval | None, steps_per_epoch: int | None
) -> dict[str, Interval | None]:
    """Return how often each set is measured; None where only at the end of training.

    Args:
        eval_every: of the config, for sets that say nothing of their own.
        steps_per_epoch: of the training set; None for a stream.

    Raises:
        DataError: the interval of a set is shorter than a step, or there are no epochs.
    """
    intervals = {}
    for name, chosen in sets_of(data).items():
        intervals[name] = eval_every
        if chosen.every is not None:
            try:
                intervals[name] = interval_of(chosen.every, steps_per_epoch)
            except ValueError as error:
                raise DataError(f"{place_of(name)}: every: {chosen.every!r}: {error}") from None
    return intervals


def set_of_metric(metric: str, names: Sequence[str]) -> str | None:
    """Return the name of the set that a metric such as ``eval/clean/loss`` is measured on.

    Args:
        names: of the sets.

    Returns:
        None where none of them has such values.
    """
    for name in names:
        if metric.startswith(prefix_of(name)):
            return name
    return None


def best_metric_problem(metric: str, known: Sequence[str], origin: Origin) -> Problem | None:
    """Return what is wrong with ``best_metric``; None where the task measures it.

    Args:
        known: the names of all values that an evaluation gives.
        origin: of the key.
    """
    if metric in known:
        return None
    without_set = metric.removeprefix("eval")
    of_sets = [name for name in known if name.endswith(without_set)]
    if not known:
        rule = "the task measures nothing: its Data has no evaluation set"
    elif len(of_sets) > 1:
        rule = f"the task measures it on several sets; name one: {listed(of_sets)}"
    else:
        rule = f"the task measures no such value; {did_you_mean(metric, known)}"
    return Problem(origin=origin, value=metric, rule=rule)
