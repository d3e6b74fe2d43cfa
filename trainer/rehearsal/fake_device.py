"""A GPU without values: its tensors are fake, and everything of the host is real.

torch's ``FakeTensor`` has a shape, a dtype, a device and a storage of the right size. Whole numbers
that come from the host (token ids, masks, positions) keep their values, so that the code takes the
branches that the data ask for. Any other element that is read back is 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import _create_work_from_future  # type: ignore[attr-defined]
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only_

from ..errors import LaunchError
from .collectives import Collective, collective_of
from .fake_values import computed, element, has_values, judge, values_of
from .ledger import EXCHANGED, Ledger
from .lines import line, place_of_code

_ATEN = torch.ops.aten
_PLAIN = (nn.Parameter, FakeTensor)
# Larger tensors of the host are fake while the model is built and while a checkpoint is copied.
_LARGE = 1 << 16
# Operations whose kernels refuse inputs of several dtypes, or on two devices. torch's rules for
# fake tensors let them pass. CPUs take float32 norms of bf16, and GPUs do not (pytorch#188503).
_OF_ONE_KIND = {
    "mm",
    "mv",
    "bmm",
    "addmm",
    "addmv",
    "baddbmm",
    "convolution",
    "native_layer_norm",
    "native_group_norm",
    "index_add",
    "index_add_",
    "index_copy",
    "index_copy_",
    "index_put",
    "index_put_",
    "grid_sampler_2d",
    "grid_sampler_3d",
    "binary_cross_entropy",
}
_DOWN = ("cuda", "cpu")
_FILLS = {_ATEN.masked_fill.Scalar, _ATEN.masked_fill_.Scalar, _ATEN.fill_.Scalar}
_MOST_READS = 10_000  # of a line in a step
_CHOOSING = {_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default}


class FakeDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs operations on tensors of the GPU without values, and records memory and collectives.

    Attributes:
        reads: how often the host waited for a fake device, by kind, line and function, and whether
            the task or the model got a value that is not known.
        large_is_fake: whether large tensors that are made on the host of a fake device are fake.
    """

    large_is_fake = False

    def __init__(self, ledger: Ledger) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ledger = ledger
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.collectives: list[Collective] = []
        self.reads: Counter[tuple[str, str, str, bool]] = Counter()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if not all(kind is Tensor or issubclass(kind, _PLAIN) for kind in types):
            return NotImplemented  # a DTensor runs the operation on its own part, which comes here
        kwargs = kwargs or {}
        result = self.run(function, args, kwargs)
        tree_map_only_(Tensor, self.ledger.record, result)
        collective = collective_of(function, args, result)
        if collective:
            self.collectives.append(collective)
            self.ledger.claim(EXCHANGED, tree_leaves((args, kwargs, result)))
        self.ledger.note_node()
        return result

    def run(self, function: Any, args: Sequence[Any], kwargs: Any) -> Any:
        leaves = tree_leaves((args, kwargs))
        fakes = [leaf for leaf in leaves if isinstance(leaf, FakeTensor)]
        device = kwargs.get("device")
        to_device = device and torch.device(device).type
        if not fakes and to_device != "cuda":
            return self._on_host(function, args, kwargs, leaves)
        if function is _ATEN.equal.default:
            self.wait("compares")
            return True
        if function is _ATEN._local_scalar_dense.default:
            values = values_of(args[0])
            if args[0].device.type == "cuda":
                self.wait("reads a value", is_known=values is not None)
            return element(args[0]) if values is None else values.item()
        if function is _ATEN.copy_.default and (len(fakes) < 2 or args[0].device.type == "cpu"):
            return self._copy(*args, **kwargs)
        if function is _ATEN._to_copy.default:
            if not fakes or (args[0].device.type, to_device) == _DOWN:
                return self.copied(*args, **kwargs)
        return self._without_values(function, args, kwargs)

    def copied(
        self,
        source: Any,
        device: Any = "cuda",
        dtype: Any = None,
        non_blocking: bool = False,
        **_: Any,
    ) -> Any:
        """Return a copy on the other device. Only a large copy on the host has no values."""
        dtype = dtype or source.dtype
        is_real = source.nbytes <= _LARGE or values_of(source) is not None
        if is_real and source.device.type == "cuda":
            into = torch.full(source.shape, element(source), dtype=dtype)
        else:
            with self.fake:
                into = torch.empty_strided(
                    source.shape, source.stride(), dtype=dtype, device=device
                )
        return self._copy(into, source, non_blocking)

    def _copy(self, into: Any, source: Any, non_blocking: bool = False) -> Any:
        """Copy between the device and the host, or between memory with and without values."""
        values = values_of(source)
        if source.device.type == "cuda" and not non_blocking:
            self.wait("copies to the host", is_known=values is not None)
        if isinstance(into, FakeTensor):
            if values is not None:
                values = values.expand(into.shape).to(into.dtype, copy=True)
            into.known_values = values if has_values(into) else None  # type: ignore[attr-defined]
        elif values is not None:
            into.copy_(values)
        elif into.is_floating_point():
            # Whole numbers stay: DDP sends the sizes of its buckets to the device and back.
            into.fill_(element(source))
        return into

    def _on_host(
        self, function: Any, args: Sequence[Any], kwargs: Any, leaves: Sequence[Any]
    ) -> Any:
        is_new = not any(isinstance(leaf, Tensor) for leaf in leaves)
        if self.large_is_fake and is_new and str(kwargs.get("device")) != "meta":
            planned = dict(kwargs)
            planned.pop("pin_memory", None)
            made = self._without_values(function, args, planned)
            if isinstance(made, FakeTensor) and made.nbytes > _LARGE:
                return made
        return function(*args, **kwargs)

    def wait(self, kind: str, *, is_known: bool = False) -> None:
        place = place_of_code(of_engine=True)
        is_guessed = not is_known and place[0] != "" and place == place_of_code()
        key = (kind, *place, is_guessed)
        self.reads[key] += 1
        if is_guessed and self.reads[key] > _MOST_READS:
            rule = f"reads a value of the device {_MOST_READS:,} times in a step, and a rehearsal"
            raise LaunchError(f"{place[0]}: {rule} has none: a loop for a value never ends")

    def _without_values(self, function: Any, args: Sequence[Any], kwargs: Any) -> Any:
        """Run an operation for the shapes of its results, and on values if all are known."""
        _refuse_mixed(function, args)
        if function in _FILLS:  # a value that overflows the dtype is an error of every kernel
            *tensors, value = args
            function(*(torch.zeros(2, dtype=tensor.dtype) for tensor in tensors), value)
        args = self._chosen(function, args)
        try:
            with self.fake:
                result = function(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            values = computed(function, args, kwargs)
            if values is None:
                rule = "depends on values of the device, and a rehearsal has none"
                place = line() or line(of_engine=True)
                raise LaunchError(f"{place}: {function} {rule}") from None
            self.wait("needs a size", is_known=True)
            return tree_map(self.copied, values)

        if function is torch.ops.c10d.allreduce_.default:
            return _with_future(*result)

        fakes = [leaf for leaf in tree_leaves(result) if isinstance(leaf, FakeTensor)]
        known = None
        if fakes and all(map(has_values, fakes)):
            known = computed(function, args, kwargs)
        for fake, values in zip(fakes, tree_leaves(known), strict=False):
            fake.known_values = values  # type: ignore[attr-defined]
        judge(function, args, result)
        return result

    def _chosen(self, function: Any, args: Sequence[Any]) -> Sequence[Any]:
        """Return the arguments with positions instead of known masks, which choose elements."""
        if function not in _CHOOSING:
            return args
        positions: list[Any] = []
        for index in args[1]:
            values = values_of(index)
            if values is not None and values.dtype == torch.bool:
                self.wait("needs a size", is_known=True)
                positions += map(self.copied, values.nonzero(as_tuple=True))
            else:
                positions.append(index)
        return [args[0], positions, *args[2:]]


def _with_future(tensors: list[Tensor], _: Any) -> tuple[list[Tensor], Any]:
    """Return a work whose future has the tensors, for DDP. A fake group's has none."""
    future: Any = torch.futures.Future()
    future.set_result(tensors)
    return tensors, _create_work_from_future(future).boxed()


def _refuse_mixed(function: Any, args: Sequence[Any]) -> None:
    """Raise the ``RuntimeError`` of a kernel for inputs of several dtypes, or on two devices."""
    if function._schema.name.removeprefix("aten::") not in _OF_ONE_KIND:
        return
    kinds = {
        f"{leaf.dtype} on {leaf.device.type}"
        for leaf in tree_leaves(args)
        if isinstance(leaf, Tensor) and leaf.dim() and leaf.is_floating_point()
    }
    if len(kinds) > 1:
        raise RuntimeError(f"{function} takes tensors of the same kind, not of {sorted(kinds)}")
