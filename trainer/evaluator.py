"""Evaluation: the sets of ``Data.evaluation``, and their values over all ranks.

``Evaluator`` measures whole sets, tries a batch of each before the first step, and surrounds code
that computes with the model as an evaluation does. The batches are made in ``data/evaluation.py``,
and ``callbacks/measuring.py`` says when a set is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import default_collate

from .config.interval import Interval, checked_interval
from .data import rng
from .data.batches import Layout, TrainData
from .data.evaluation import EvaluationBatches
from .data.now import Now, at, current
from .errors import DataError, Origin
from .losses import weighted
from .metrics import WeightedSums, agreed
from .strategies.buffers import restored_buffers
from .task import Data, EvaluationSet, Task
from .text import did_you_mean, listed

if TYPE_CHECKING:
    from torch import nn

    from .distributed.agreement import Agreement
    from .metrics import Metric
    from .optim.ema import Average
    from .position import Position
    from .strategies import Strategy

UNNAMED = ""  # the name of a single set


@dataclass(frozen=True, kw_only=True, eq=False)
class MeasuredSet:
    """An evaluation set of a run. Iterate it for ``(batch, examples)``.

    Every rank gets as many batches, in the order of the data. A batch of 0 examples does not count.

    Args:
        name: as in ``Data.evaluation``. "" for a single set.
        every: how often the set is measured. None: at the end of training.
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluator:
    """Measures the prepared model of a run. Every method is collective: call it on every rank.

    Args:
        position: of the run. An evaluation keeps the values and a signal to stop here.
        average: the moving average of the weights, which is measured if a decay is set.
        frozen_modes: the modules that stay in evaluation mode while the model is trained.
    """

    task: Task
    strategy: Strategy
    agreement: Agreement
    sets: Mapping[str, MeasuredSet]
    position: Position
    train_data: TrainData
    average: Average
    frozen_modes: Collection[nn.Module]

    def evaluate(self, names: Collection[str] | str | None = None) -> dict[str, float]:
        """Measure whole sets: as ``Run.evaluate``."""
        chosen = self.chosen(names)
        measured: dict[str, float] = {}
        with self.evaluating():
            for evaluation_set in chosen.values():
                values = self._measure(evaluation_set)
                if values is None:
                    return {}
                measured |= values

        self.position.last_evaluation = self.position.last_evaluation | measured
        return measured

    @contextmanager
    def evaluating(self, evaluation_set: MeasuredSet | None = None) -> Iterator[None]:
        """Surround code that computes as an evaluation does: as ``Run.evaluating``."""
        moment = self._moment_of(evaluation_set) if evaluation_set else current()
        self.strategy.sync_copies(self.agreement.gather)
        with self._in_evaluation_mode(), self.average.applied(), at(moment):
            yield

    @contextmanager
    def _in_evaluation_mode(self) -> Iterator[None]:
        """Surround code that records no gradients. Restore modes of modules and generators."""
        model = self.strategy.model
        modes = [(module, module.training) for module in model.modules()]
        states = rng.read()
        model.eval()
        try:
            with torch.no_grad():
                yield
        finally:  # also of an error, which a callback may catch
            for module, training in modes:
                module.training = training
            rng.write(states)  # otherwise drawing numbers would change the training
            self.strategy.settle()

    def try_out(self) -> dict[str, float] | None:
        """Evaluate the first batch of each set, and change nothing.

        Generators, buffers, modes of modules and positions of streams are restored afterwards. The
        values mean little, but have the names of an evaluation. None if ``Task.summarize`` cannot
        compute with the values of a single batch.
        """
        found: dict[str, float] | None = {}
        with self.unnoticed():
            for evaluation_set in self.sets.values():
                values = self._measure(evaluation_set, is_trial=True)
                found = None if values is None or found is None else found | values
        return found

    @contextmanager
    def unnoticed(self) -> Iterator[None]:
        """Surround a trial in evaluation mode. Generators, buffers and modes are restored."""
        # torch compiles the second shape in another way than the first, which the training must
        # have. torch's compiler takes a second to import.
        compiled = self.strategy.plan.compile
        eager = torch.compiler.set_stance("force_eager") if compiled else nullcontext()
        with restored_buffers(self.strategy.model), eager, self._in_evaluation_mode():
            yield

    def train_mode(self) -> None:
        """Put the model into training mode, except for the frozen modes."""
        self.strategy.model.train()
        for module in self.frozen_modes:
            module.eval()

    def close(self) -> None:
        """End the loading processes of all sets."""
        for evaluation_set in self.sets.values():
            evaluation_set.batches.close()

    def chosen(self, names: Collection[str] | str | None) -> dict[str, MeasuredSet]:
        """Return the sets of these names, all sets for None, in the order of the task's data.

        Raises:
            DataError: there is no set at all, or no set of such a name.
        """
        if not self.sets:
            raise DataError("Data.evaluation is None: there is nothing to measure on")
        wanted = {names} if isinstance(names, str) else set(self.sets if names is None else names)
        unknown = sorted(wanted - self.sets.keys())
        if unknown:
            known = listed(list(self.sets))
            raise DataError(f"Data.evaluation has no set {unknown[0]!r}. Its sets are {known}")
        return {name: chosen for name, chosen in self.sets.items() if name in wanted}

    def _measure(self, chosen: MeasuredSet, *, is_trial: bool = False) -> dict[str, float] | None:
        """Return the values of a set over the batches of all ranks. None if a signal comes before.

        Of a trial over the first batch None means that the task cannot summarize the values.
        """
        model, accelerator = self.strategy.model, self.strategy.accelerator
        objects = chosen.build_metrics()
        sums = WeightedSums({name: m.to(accelerator.device) for name, m in objects.items()})
        with at(self._moment_of(chosen)):
            for of_rank, examples in [chosen.batches.first()] if is_trial else chosen:
                batch = self.strategy.to_device(of_rank)
                values: Mapping[str, Any]
                if chosen.counts_examples:
                    # The loader knows the number of examples. The default weight would take the
                    # first dimension of the first tensor, which may be another number.
                    result = self.task.training_step(model, batch)
                    values = weighted(result, {"": float(examples)})
                else:
                    values = chosen.evaluation_step(model, batch)
                sums.add(values, counts=examples > 0)
                if not is_trial and self._is_ended_by_signal():
                    return None

            of_ranks = self.agreement.gather((sums.layout(), sums.named))
            if chosen.has_own_step:
                sums.keep({name for _, named in of_ranks for name in named})
            reduced = sums.reduce(accelerator, agreed(layout for layout, _ in of_ranks))
            try:
                means = self.task.summarize(reduced)
            except (ArithmeticError, ValueError):
                if not is_trial:
                    raise
                return None  # a batch may have no positive example to divide by
        return {f"{prefix_of(chosen.name)}{name}": float(mean) for name, mean in means.items()}

    def _moment_of(self, evaluation_set: MeasuredSet) -> Now:
        """Return the moment that ``trainer.now()`` tells while a set is measured."""
        data, samples = self.train_data, self.position.samples
        epoch = data.epochs_at(samples)
        return data.items.moment(self.position.step, epoch, samples, evaluation_set.name)

    def _is_ended_by_signal(self) -> bool:
        """Return whether a signal has come during the evaluation."""
        position = self.position
        if position.stop_signal:  # of before: this evaluation is wanted all the same
            return False
        position.stop_signal = self.agreement.poll_evaluation()
        position.stopping |= position.stop_signal > 0
        return position.stop_signal > 0


# -- the sets of a task ----------------------------------------------------------------------------


def prefix_of(name: str) -> str:
    """Return the beginning of the names of a set's values: ``eval/``, or ``eval/clean/``."""
    return f"eval/{name}/" if name else "eval/"


def place_of(name: str) -> str:
    """Return the place of a set in a task's data, for messages."""
    return f"Data.evaluation[{name!r}]" if name else "Data.evaluation"


def sets_of(data: Data) -> dict[str, EvaluationSet]:
    """Return the sets to measure on, by name: none, a single one named "", or several."""
    given = data.evaluation
    if given is None:
        return {}
    if not isinstance(given, Mapping) or 0 in given:  # a mapping with the key 0 is a data set
        given = {UNNAMED: given}
    elif not all(isinstance(name, str) and name.strip() and "/" not in name for name in given):
        rule = "the names of sets must be text without a slash: metrics are eval/name/loss"
        raise DataError(f"Data.evaluation: {list(given)}: {rule}")
    return {
        name: chosen if isinstance(chosen, EvaluationSet) else EvaluationSet(chosen)
        for name, chosen in given.items()
    }


def sizes_of(sets: Mapping[str, MeasuredSet]) -> int | Mapping[str, int | None] | None:
    """Return the samples to measure on: 0 without a set, None of a stream, by name of several."""
    sizes = {name: measured.batches.size for name, measured in sets.items()}
    return sizes.get(UNNAMED, sizes) if sizes else 0


def measured_sets(
    task: Task,
    data: Data,
    layout: Layout,
    *,
    batch_size: int,
    eval_every: Interval | None = None,
    steps_per_epoch: int | None = None,
    **loading: Any,
) -> dict[str, MeasuredSet]:
    """Return the sets of a run by name, with the settings that task and config give to all of them.

    ``loading`` are ``workers``, ``pin_memory`` and ``gather`` of ``EvaluationBatches``.
    """
    cls = type(task)
    is_plain = cls.evaluation_step is Task.evaluation_step and cls.weight is Task.weight
    measured = {}
    for name, chosen in sets_of(data).items():
        origin = Origin(place_of(name), key="every")
        has_own_step = chosen.evaluation_step is not None
        measured[name] = MeasuredSet(
            name=name,
            batches=EvaluationBatches(
                chosen.items,
                layout,
                batch_size=batch_size,
                collate=chosen.collate or data.collate or default_collate,
                name=place_of(name),
                **loading,
            ),
            every=checked_interval(chosen.every, steps_per_epoch, origin) or eval_every,
            evaluation_step=chosen.evaluation_step or task.evaluation_step,
            build_metrics=chosen.build_metrics or task.build_metrics,
            has_own_step=has_own_step,
            counts_examples=is_plain and not has_own_step,
        )
    return measured


def prefix_of_metric(metric: str, names: Iterable[str]) -> str:
    """Return the prefix of the set of a metric such as ``eval/clean/loss``. "" if none has it."""
    return next(filter(metric.startswith, map(prefix_of, names)), "")


def check_best_metric(metric: str, known: Collection[str], origin: Origin) -> None:
    """Raise ``ConfigError`` if ``best_metric`` is not among the values of an evaluation."""
    if metric in known:
        return
    meant = did_you_mean(f"eval/{metric.removeprefix('eval/')}", known)
    raise origin.error(f"the task measures no such value; {meant}", metric)
