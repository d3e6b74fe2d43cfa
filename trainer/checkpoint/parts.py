"""The record of what a checkpoint is made of, and this rank's ranges of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from ..data.batches import Layout, TrainData
from ..data.samples import Sampled
from ..errors import CheckpointError
from ..strategies import Shard, Strategy
from .export import ModelFile, Stateful, StatefulTask, changed_buffer, save_config
from .optimizer_state import OptimizerForm, state_of
from .ranges import Key


class StatefulCallback(Stateful, Protocol):
    """What may also ask for the checkpoints of some steps to be kept."""

    def pinned_steps(self) -> Collection[int]: ...


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The live parts of a training at one step.

    Args:
        step: optimizer steps done.
        counters: what else ``state.json`` keeps by these names, and ``load`` gives back.
        averages: the moving averages of the shards that this rank owns; None where none is kept.
        sampled: what the training set holds, as far as samples of it tell.
        settings: all that is known of the run by key, of which the fingerprint takes what decides
            the numbers.
        config, plan: for people who read ``state.json``.
        run: for the model card.
    """

    step: int
    counters: Mapping[str, Any]
    strategy: Strategy
    optimizer_form: OptimizerForm
    averages: Sequence[tuple[Shard, Tensor]] | None
    schedule: LRScheduler
    data: TrainData
    sampled: Sampled
    task: StatefulTask
    callbacks: Sequence[StatefulCallback]
    model_file: ModelFile
    settings: Mapping[str, Any]
    config: Mapping[str, Any]
    plan: Mapping[str, Any]
    run: Mapping[str, Any]

    @property
    def layout(self) -> Layout:
        return self.data.layout

    @property
    def rank(self) -> int:
        return int(self.strategy.accelerator.process_index)

    @property
    def world_size(self) -> int:
        return int(self.strategy.plan.world_size)

    def named_callbacks(self) -> dict[str, StatefulCallback]:
        """Return the callbacks by class name, with a number for the second of a class and so on."""
        named: dict[str, StatefulCallback] = {}
        for callback in self.callbacks:
            name = type(callback).__name__
            same = sum(other == name or other.startswith(f"{name}#") for other in named)
            named[f"{name}#{same + 1}" if same else name] = callback
        return named

    def save_beside(self, folder: Path) -> None:
        """Write the small files beside an exported model: its configuration, the task's, the model
        card.
        """
        save_config(self.strategy.model, folder, self.model_file.most_of())
        self.task.save_extras(folder)
        if card := self.task.model_card(self.run):
            (folder / "README.md").write_text(card, encoding="utf-8", errors="backslashreplace")

    def pieces(self) -> Iterator[tuple[Key, Tensor]]:
        """Yield views of all that this rank writes of model and optimizer; together the ranks write
        each element once.

        Raises:
            CheckpointError: the optimizer or a buffer has got another form than it had at the
                start.
        """
        strategy, form = self.strategy, self.optimizer_form
        if problem := changed_buffer(strategy):
            raise CheckpointError(problem)
        averages = {shard.name: average for shard, average in self.averages or ()}
        for shard, low, high in self.dealt(strategy.shards()):
            yield _piece("parameter", shard, shard.tensor, low, high)
            for kind, tensor in state_of(strategy.optimizer, shard, form):
                if tensor.dim():
                    yield _piece(kind, shard, tensor, low, high)
                elif (
                    shard.start + low == 0
                ):  # a value of the whole parameter: who has its first element writes it
                    yield Key(kind, shard.name), tensor
            if shard.name in averages:
                yield _piece("average", shard, averages[shard.name], low, high)
        for shard, low, high in self._kept_frozen():
            yield _piece("frozen", shard, shard.tensor, low, high)
        if self.rank == 0:
            for name, buffer in strategy.buffers():
                yield Key("buffer", name), buffer.detach().reshape(-1)

    def leaves_out(self, tensor: Tensor) -> bool:
        """Tell whether a tensor of the model is not written: one of the model below an adapter,
        which was loaded.
        """
        return (
            self.model_file.names is not None
            and isinstance(tensor, nn.Parameter)
            and not tensor.requires_grad
        )

    def _kept_frozen(self) -> Iterable[tuple[Shard, int, int]]:
        return (
            self.dealt(self.strategy.shards(trainable=False))
            if self.model_file.names is None
            else ()
        )

    def dealt(self, held: Iterable[Shard]) -> Iterator[tuple[Shard, int, int]]:
        """Yield ``(shard, low, high)``: the part to write. What several ranks have is cut into
        equal parts for them.
        """
        shards, at, total = (
            list(held),
            Counter[int](),
            Counter[int](),
        )  # elements so far, by how many ranks have them
        for shard in shards:
            total[shard.copies] += shard.tensor.numel()
        for shard in shards:
            n, whole = shard.copies, total[shard.copies]
            low, high = whole * shard.copy // n - at[n], whole * (shard.copy + 1) // n - at[n]
            at[n] += shard.tensor.numel()
            row = shard.columns.width if shard.columns else 1  # of which no part is cut
            low, high = max(0, low // row * row), min(shard.tensor.numel(), high // row * row)
            if low < high:
                yield shard, low, high

    def bytes(self) -> int:
        """Count what this rank will write, to within some kilobytes; known before the optimizer has
        any state.
        """
        state = sum(dtype.itemsize for dtype in self.optimizer_form.ranges.values()) + 4 * bool(
            self.averages
        )
        learning, frozen = self.dealt(self.strategy.shards()), self._kept_frozen()
        count = sum((high - low) * (shard.tensor.itemsize + state) for shard, low, high in learning)
        count += sum((high - low) * shard.tensor.itemsize for shard, low, high in frozen)
        return count + (
            sum(buffer.nbytes for _, buffer in self.strategy.buffers()) if self.rank == 0 else 0
        )

    @torch.no_grad()
    def not_finite(self, *kinds: str) -> list[str]:
        """Name what this rank would write, and its buffers, that holds a value that is not finite.

        A parameter by its name, others with their kind before it (``buffer 1.running_mean``).

        Args:
            kinds: of which to look at those alone; by default all.

        Raises:
            CheckpointError: as ``pieces``.
        """
        alike: dict[torch.device, list[tuple[str, Tensor]]] = {}
        for kind, name, tensor in self._looked_at():
            if tensor.is_floating_point() and (kind in kinds or not kinds):
                said = name if kind == "parameter" else f"{kind} {name}"
                alike.setdefault(tensor.device, []).append((said, tensor))
        found = [said for named in alike.values() for said in _with_odd_values(named)]
        return [*dict.fromkeys(found)]

    def _looked_at(self) -> Iterator[tuple[str, str, Tensor]]:
        for key, tensor in self.pieces():
            if key.kind != "buffer":
                yield key.kind, key.name, tensor
        for name, buffer in self.strategy.buffers():  # each rank has its own until they are written
            yield "buffer", name, buffer


def _with_odd_values(named: Sequence[tuple[str, Tensor]]) -> list[str]:
    """Name the tensors of one device that hold a value that is not finite; the device is waited for
    once.
    """
    # A sum shows them at a fifteenth of the cost; one that only ran over is looked at again.
    sums = torch.stack([tensor.sum(dtype=torch.float32) for _, tensor in named])
    suspects = [one for one, fine in zip(named, sums.isfinite().tolist(), strict=True) if not fine]
    return [said for said, tensor in suspects if not bool(tensor.float().isfinite().all())]


def _piece(kind: str, shard: Shard, values: Tensor, low: int, high: int) -> tuple[Key, Tensor]:
    part, columns = values[low:high], shard.columns
    if columns is None:
        return Key(kind, shard.name, shard.start + low), part
    return Key(kind, shard.name, shard.start + columns.at(low), columns.stride), part.view(
        -1, columns.width
    )
