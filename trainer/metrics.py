"""Metrics as sums and weights: added up on the device, and reduced over the ranks when read.

A mean of the ranks' means is wrong as soon as ranks have different counts. A sum of sums divided by
a sum of weights is not.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Protocol

import numpy
import torch
import torch.distributed as dist
from torch import Tensor

from .errors import DataError, Origin

# A name, and whether it is a plain sum, which is not divided by a weight.
Key = tuple[str, bool]
Value = Tensor | tuple[Tensor, Tensor | float | None] | Mapping[str, Any]


class Metric(Protocol):
    """The part of ``torchmetrics.Metric`` that the trainer uses.

    A metric gathers the states of all ranks once, in ``compute``.
    """

    dist_sync_fn: Any

    def update(self, *args: Any, **kwargs: Any) -> None: ...
    def compute(self) -> Any: ...
    def to(self, device: Any) -> Any: ...


class WeightedSums:
    """Sums of values and sums of weights by name, in float64.

    Args:
        objects: fresh torchmetrics on the device, by name. Values of these names update them.

    Attributes:
        named: the names of torchmetrics for which values were added.
    """

    def __init__(self, objects: Mapping[str, Metric] = MappingProxyType({})) -> None:
        self._objects = objects
        self.named: set[str] = set()
        self._sums: dict[Key, Tensor] = {}  # of shape (2, *shape): sums, and weights
        for metric in objects.values():
            metric.dist_sync_fn = _gather

    def add(self, metrics: Mapping[str, Any], *, counts: bool = True) -> None:
        """Add the values of a batch, by name. A value is:

            1-D tensor               a number for each example
            (sum, weight)            a sum over the batch, and the weight to divide by. Both of the
                                     same shape, or a single weight for all
            (sum, None)              a plain sum, such as the counts of a confusion matrix
            tuple, mapping, tensor   arguments of ``update``, if the name is a torchmetric's

        Args:
            counts: whether the values count. Otherwise only the names are noted.

        Raises:
            ConfigError: a single number for a whole batch, whose weight is unknown.
            DataError: the values have no names.
        """
        if not isinstance(metrics, Mapping):
            raise DataError(
                "evaluation_step must return values by name, {name: value}. "
                f"It returned a {type(metrics).__name__}"
            )
        for name, value in metrics.items():
            if name not in self._objects:
                self._add(name, value, counts)
                continue
            self.named.add(name)
            update = self._objects[name].update
            if not counts:
                continue
            if isinstance(value, Mapping):
                update(**value)
            elif isinstance(value, tuple):
                update(*value)
            else:
                update(value)

    def _add(self, name: str, value: Value, counts: bool) -> None:
        weight: Any
        if isinstance(value, tuple):
            total, weight = value
            sums = _wide(torch.as_tensor(total))
        elif isinstance(value, Tensor) and value.ndim:
            sums, weight = _wide(value).sum(), value.numel()
        else:
            rule = (
                "a single number for a whole batch has no known weight. Give a value for each "
                "example, or (sum, weight)"
            )
            raise Origin("evaluation_step", key=name).error(rule)

        key = (name, weight is None)
        if not isinstance(weight, Tensor):
            # A fill makes a number on the device. A copy from the host would wait for the device.
            weight = sums.new_full((), float(1 if weight is None else weight))
        weights = _wide(weight).to(sums.device).expand_as(sums)
        # A batch without weight adds nothing, not even if its mean is NaN.
        pair = torch.stack([torch.where(weights == 0, 0.0, sums), weights])
        if not counts:
            pair = torch.zeros_like(pair)
        _add_to(self._sums, key, pair)

    def reduce(
        self, gather: Callable[[Any], list[Any]], *, only_named: bool = False
    ) -> dict[str, float]:
        """Compute the values over all ranks, which may have different names. Collective.

        A name of weight 0 gives NaN. The elements of a sum that has a shape get names such as
        ``recall/3`` and ``confusion/3/5``.

        Args:
            gather: collects a value of every rank, in rank order.
            only_named: leave out torchmetrics for which no rank has added values.
        """
        own = {key: pair.numpy(force=True) for key, pair in self._sums.items()}
        named = set() if only_named else {*self._objects}
        totals: dict[Key, Any] = {}
        for sums, of_rank in gather((own, self.named)):
            named |= of_rank
            for key, pair in sums.items():
                _add_to(totals, key, pair)

        values: dict[str, float] = {}
        for (name, is_plain_sum), (total, weight) in sorted(totals.items()):
            with numpy.errstate(invalid="ignore"):
                numbers = total if is_plain_sum else total / weight
            values |= _by_label(name, numbers)
        parts = [values.get(name, 0.0) for name, _ in sorted(totals) if name.startswith("loss/")]
        if parts:  # a part without items in the whole set is NaN
            values.setdefault("loss", float(numpy.nansum(parts)))
        for name in sorted(named):
            values |= _computed(name, self._objects[name])
        return values


def _add_to(sums: dict[Key, Any], key: Key, pair: Any) -> None:
    """Add to the sums of a name. Raise ``DataError`` if they have another shape."""
    before = sums.get(key)
    if before is None:
        sums[key] = pair
    elif before.shape == pair.shape:
        sums[key] = before + pair
    else:
        raise DataError(
            f"metric {key[0]!r} has shape {(*pair.shape[1:],)} in one batch and "
            f"{(*before.shape[1:],)} in another"
        )


def _by_label(name: str, value: Any) -> Iterator[tuple[str, float]]:
    """Yield the elements of a value: ``name/0``, ``name/1`` and so on, or just the name."""
    for index in itertools.product(*map(range, value.shape)):
        yield "/".join([name, *map(str, index)]), float(value[index])


def _computed(name: str, metric: Metric) -> dict[str, float]:
    """Compute a torchmetric, and name the elements of the value. Collective: call on every rank."""
    with warnings.catch_warnings():
        # A rank whose batches do not count has rightly updated nothing.
        warnings.filterwarnings(
            "ignore", "The ``compute`` method of metric .* was called before the ``update``"
        )
        result = metric.compute()

    named = {name: result}
    if isinstance(result, Mapping):
        named = {f"{name}/{key}": value for key, value in result.items()}
    computed: dict[str, float] = {}
    for key, value in named.items():
        computed |= _by_label(key, value.double().numpy(force=True))
    return computed


def _gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Gather a state of a torchmetric from all ranks. Collective: call on every rank.

    torchmetrics' function needs equal types, and guesses them on a rank without data.
    """
    gathered: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, tensor.detach().cpu(), group=group)
    with_data = [part.to(tensor.device) for part in gathered if part.numel()]
    return with_data or [tensor]


def _wide(value: Tensor) -> Tensor:
    """Return the values in float64."""
    return value.detach().double()
