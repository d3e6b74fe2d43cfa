"""Metrics as sums and weights: accumulated on the device, exchanged only when read.

A mean of per-rank means is wrong as soon as ranks hold different counts; sums are not.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from .errors import ConfigError, DataError, Origin, Problem
from .text import kind_of

if TYPE_CHECKING:
    from accelerate import Accelerator

Key = tuple[str, bool]  # a name, and whether its sum stays one
Layout = dict[Key, tuple[int, ...]]  # with the shape of the sum
Value = Tensor | tuple[Tensor, Tensor | float | None] | Mapping[str, Any]


class Metric(Protocol):
    """What is used of a ``torchmetrics.Metric``: states that it gathers over ranks itself, once, in
    ``compute``.
    """

    dist_sync_fn: Any

    def update(self, *args: Any, **kwargs: Any) -> None: ...
    def compute(self) -> Any: ...
    def to(self, device: Any) -> Any: ...


class WeightedSums:
    """Sum of values and sum of weights for each name, in float64 where the device has it.

    Args:
        objects: torchmetrics by name, fresh ones on the device; what is added under these names
            updates them.
    """

    def __init__(self, objects: Mapping[str, Metric] = MappingProxyType({})) -> None:
        self._objects = objects
        self._sums: dict[Key, Tensor] = {}  # (2, *shape): sums and weights
        for metric in objects.values():
            metric.dist_sync_fn = _gather

    def add(self, metrics: Mapping[str, Any], *, counts: bool = True) -> None:
        """Add one batch, whose values are by name

            1-D tensor               one value for each example
            (sum, weight)            a sum over the batch, and the weight that it is to be divided by; both of any
                                     one shape, or one weight for all
            (sum, None)              a sum that stays one, such as the counts of a confusion matrix
            tuple, mapping, tensor   arguments of ``update`` where the name is a torchmetric's

        Without ``counts`` only the names are noted.

        Raises:
            ConfigError: one number for a whole batch, whose weight is not known.
            DataError: there are no names.
        """
        if not isinstance(metrics, Mapping):
            form = kind_of(metrics)
            raise DataError(
                f"evaluation_step must return values by name, {{name: value}}; it returned {form}"
            )
        for name, value in metrics.items():
            if name not in self._objects:
                self._add(name, value, counts)
            elif counts:
                metric = self._objects[name]
                if isinstance(value, Mapping):
                    metric.update(**value)
                else:
                    metric.update(*(value if isinstance(value, tuple) else (value,)))

    def _add(self, name: str, value: Value, counts: bool) -> None:
        sums, weights = _sum_and_weight(name, value)
        key = name, weights is None
        weights = torch.ones_like(sums) if weights is None else weights.expand_as(sums)
        # A batch without weight adds nothing, also where its mean was no number.
        pair = torch.stack([torch.where(weights == 0, 0.0, sums), weights])
        if not counts:
            pair = torch.zeros_like(pair)
        if key in self._sums:
            agreed([self.layout(), {key: tuple(sums.shape)}])
            pair = self._sums[key] + pair
        self._sums[key] = pair

    def layout(self) -> Layout:
        """Return what was added: ranks may hold different names."""
        return {key: tuple(pair.shape[1:]) for key, pair in self._sums.items()}

    def reduce(self, accelerator: Accelerator, layout: Layout | None = None) -> dict[str, float]:
        """Compute the values over all ranks, from one packed reduction. Collective: call on every
        rank.

        A name of weight 0 gives nan; the parts of a sum with a shape get names such as
        ``recall/3``, ``confusion/3/5``.

        Args:
            layout: what the ranks hold together, as ``agreed`` says; by default all hold what this
                one does.
        """
        layout, values = self.layout() if layout is None else layout, {}
        if layout:
            device = accelerator.device
            none = {
                key: _wide(torch.zeros(2, *shape, device=device)) for key, shape in layout.items()
            }
            mine = {
                **none,
                **{key: pair.to(device) for key, pair in self._sums.items()},
            }  # numbers, from the host
            packed = accelerator.reduce(
                torch.cat([mine[key].reshape(2, -1) for key in layout], dim=1), "sum"
            ).tolist()
            labels = [
                (plain, label)
                for (name, plain), shape in layout.items()
                for label in _labels(name, shape)
            ]
            for (plain, label), total, weight in zip(labels, *packed, strict=True):
                values[label] = total if plain else total / weight if weight else float("nan")
        for name in sorted(self._objects):
            values.update(_computed(name, self._objects[name]))
        return values


def agreed(layouts: Iterable[Layout]) -> Layout:
    """Return what ranks hold together.

    Raises:
        DataError: they give one name different shapes.
    """
    found: Layout = {}
    for own in layouts:
        for key, shape in own.items():
            if found.setdefault(key, shape) != shape:
                raise DataError(
                    f"metric {key[0]!r} has shape {shape} in one batch and {found[key]} in another"
                )
    return dict(sorted(found.items()))


def _sum_and_weight(name: str, value: Value) -> tuple[Tensor, Tensor | None]:
    if isinstance(value, tuple):
        sums, weight = _wide(torch.as_tensor(value[0])), value[1]
        if weight is None or isinstance(weight, Tensor):
            return sums, None if weight is None else _wide(weight).to(sums.device)
        return sums, torch.full(
            (), float(weight), dtype=sums.dtype, device=sums.device
        )  # a number is not copied there
    if not isinstance(value, Tensor) or value.ndim == 0:
        rule = "one number for a whole batch has no known weight; give a value for each example, or (sum, weight)"
        raise ConfigError(Problem(origin=Origin("evaluation_step", key=name), rule=rule))
    wide = _wide(value)
    return wide.sum(), torch.full((), float(wide.numel()), dtype=wide.dtype, device=wide.device)


def _labels(name: str, shape: tuple[int, ...]) -> Iterator[str]:
    for index in itertools.product(*map(range, shape)):
        yield "/".join([name, *map(str, index)])


def _computed(name: str, metric: Metric) -> dict[str, float]:
    with warnings.catch_warnings():
        # A rank whose batches did not count has nothing of its own to compute from, and that is
        # right.
        warnings.filterwarnings(
            "ignore", "The ``compute`` method of metric .* was called before the ``update``"
        )
        result = metric.compute()
    named = (
        {f"{name}/{key}": value for key, value in result.items()}
        if isinstance(result, Mapping)
        else {name: result}
    )
    return {
        label: number
        for key, value in named.items()
        for label, number in zip(
            _labels(key, tuple(value.shape)), value.double().flatten().tolist(), strict=True
        )
    }


def _gather(tensor: Tensor, group: Any = None) -> list[Tensor]:
    """Gather one state of all ranks, in rank order, whatever the shapes.

    torchmetrics' own gathering wants equal types, and guesses them where a rank has no data.
    """
    parts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(parts, tensor.detach().cpu(), group=group)
    return [part.to(tensor.device) for part in parts if part.numel()] or [tensor]


def _wide(value: Tensor) -> Tensor:
    value = value.detach()
    return value.float() if value.device.type == "mps" else value.double()
