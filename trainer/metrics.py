"""Metrics as sums and weights: added up on the device, and reduced over the ranks when read.

A mean of the ranks' means is wrong as soon as ranks have different counts. A sum of sums divided by
a sum of weights is not.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import numpy
import torch
from accelerate.utils import gather_object
from torch import Tensor

from .errors import DataError, Origin

if TYPE_CHECKING:
    from accelerate import Accelerator

# A name, and whether it is a plain sum, which is not divided by a weight.
Key = tuple[str, bool]
# The shape of each sum.
Layout = dict[Key, tuple[int, ...]]


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

    def _add(
        self,
        name: str,
        value: Tensor | tuple[Tensor, Tensor | float | None] | Mapping[str, Any],
        counts: bool,
    ) -> None:
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
        weights = _wide(weight).to(sums.device).expand_as(sums) * counts
        # A batch without weight adds nothing, not even if its mean is NaN.
        pair = torch.stack([torch.where(weights == 0, 0.0, sums), weights])
        agreed([self.layout(), {key: tuple(sums.shape)}])
        self._sums[key] = pair + self._sums.get(key, 0.0)

    def layout(self) -> Layout:
        """Return the names and shapes of this rank's sums. Ranks may have different names."""
        return {key: tuple(pair.shape[1:]) for key, pair in self._sums.items()}

    def keep(self, names: Collection[str]) -> None:
        """Drop the torchmetrics of other names. Call it with the same names on every rank."""
        self._objects = {name: self._objects[name] for name in self._objects.keys() & names}

    def reduce(self, accelerator: Accelerator, layout: Layout) -> dict[str, float]:
        """Compute the values over all ranks, in a single reduction.

        A name of weight 0 gives NaN. The elements of a sum that has a shape get names such as
        ``recall/3`` and ``confusion/3/5``. Collective: call on every rank.

        Args:
            layout: names and shapes of all ranks together, see ``agreed``.
        """
        values = self._reduce_sums(accelerator, layout) if layout else {}
        parts = [values.get(name, 0.0) for name, _ in layout if name.startswith("loss/")]
        if parts:  # a part without items in the whole set is NaN
            values.setdefault("loss", float(numpy.nansum(parts)))
        for name in sorted(self._objects):
            values |= _computed(name, self._objects[name])
        return values

    def _reduce_sums(self, accelerator: Accelerator, layout: Layout) -> dict[str, float]:
        """Add up the sums and weights of all ranks, and divide. Collective: call on every rank."""
        pairs, labels = [], []
        for key, shape in layout.items():
            name, is_plain_sum = key
            # Only other ranks may have this name.
            pair = self._sums.get(key, torch.zeros(2, *shape)).to(accelerator.device)
            pairs.append(_wide(pair).reshape(2, -1))
            labels += [(label, is_plain_sum) for label in _labels(name, shape)]
        totals, weights = accelerator.reduce(torch.cat(pairs, dim=1), "sum")
        means = totals / weights  # NaN of no items
        return {
            label: total if is_plain_sum else mean
            for (label, is_plain_sum), total, mean in zip(
                labels, totals.tolist(), means.tolist(), strict=True
            )
        }


def agreed(layouts: Iterable[Layout]) -> Layout:
    """Return the layout of several ranks together, in the same order on each of them.

    Raises:
        DataError: they give a name different shapes.
    """
    found: Layout = {}
    for layout in layouts:
        for key, shape in layout.items():
            if found.setdefault(key, shape) != shape:
                raise DataError(
                    f"metric {key[0]!r} has shape {shape} in one batch and {found[key]} in another"
                )
    return dict(sorted(found.items()))


def _labels(name: str, shape: tuple[int, ...]) -> Iterator[str]:
    """Yield the names of the elements of a value: ``name/0``, ``name/1``, or just the name."""
    for index in numpy.ndindex(shape):
        yield "/".join([name, *map(str, index)])


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
        labels = _labels(key, value.shape)
        computed |= zip(labels, value.double().flatten().tolist(), strict=True)
    return computed


def _gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Gather a state of a torchmetric from all ranks. Collective: call on every rank.

    torchmetrics' function needs equal types, and guesses them on a rank without data.
    """
    gathered = gather_object([tensor.detach().cpu()])
    return [part.to(tensor.device) for part in gathered if part.numel()] or [tensor]


def _wide(value: Tensor) -> Tensor:
    """Return the values in float64."""
    return value.detach().double()
