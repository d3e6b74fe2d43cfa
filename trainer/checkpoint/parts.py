"""The parts of a training that a checkpoint holds, and the elements that this rank writes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from ..config.train_config import TrainConfig
from ..data.batches import TrainData
from ..data.samples import Sampled
from ..errors import CheckpointError
from ..optim.ema import Average
from ..position import COUNTERS, Position
from ..run_plan import Plan
from ..strategies import Shard, Strategy
from ..strategies.tensors import unwrapped
from ..task import Task
from .exported import ModelFile, changed_buffer, save_config
from .optimizer_state import OptimizerForm, state_of
from .safetensors_io import Key


class StatefulCallback(Protocol):
    """An object with a state, which may also keep the checkpoints of some steps."""

    def state_dict(self) -> Mapping[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...

    def pinned_steps(self) -> Collection[int]: ...


class Parts(NamedTuple):
    """A view of the live parts of a training, which a checkpoint is saved from and loaded into.

    Args:
        position: the step of the run, and the counters that ``state.json`` keeps.
        spent: returns the tokens and seconds of the run until now, which ``state.json`` keeps too.
        average: the moving average of the weights, if a decay is set.
        schedule: of the learning rate, stepped by ``Run.advance``.
        sampled: the content of some samples of the training set.
        mathematics: the settings that decide the numbers of the run, in a form that files hold.
        facts: the content of plan.json, for the model card.
    """

    position: Position
    spent: Callable[[], Mapping[str, float]]
    strategy: Strategy
    optimizer_form: OptimizerForm
    average: Average
    schedule: LRScheduler
    data: TrainData
    sampled: Sampled
    task: Task
    callbacks: Sequence[StatefulCallback]
    model_file: ModelFile
    config: TrainConfig
    plan: Plan
    mathematics: dict[str, Any]
    facts: Mapping[str, Any]

    @property
    def step(self) -> int:
        """Return the optimizer steps done."""
        return self.position.step

    @property
    def counters(self) -> dict[str, Any]:
        """Return the values that ``state.json`` keeps by these names and ``load`` gives back."""
        kept = {name: getattr(self.position, name) for name in COUNTERS}
        return {**kept, "spent": self.spent()}

    @property
    def run(self) -> dict[str, Any]:
        """Return the facts of the run until now, for the model card."""
        return {**self.facts, **self.counters}

    @property
    def rank(self) -> int:
        return self.strategy.accelerator.process_index  # type: ignore[no-any-return]

    @property
    def world_size(self) -> int:
        return self.plan.world_size

    def named_callbacks(self) -> dict[str, StatefulCallback]:
        """Return the callbacks by class name, with ``#2`` for the second of a class, and so on."""
        names: list[str] = []
        named = {}
        for callback in self.callbacks:
            names.append(type(callback).__name__)
            number = names.count(names[-1])
            named[f"{names[-1]}#{number}".removesuffix("#1")] = callback
        return named

    def save_beside(self, folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> None:
        """Write the small files beside an exported model, and ``more`` texts by file name."""
        if self.model_file.save_config is None:
            product = unwrapped(self.strategy.model).get_submodule(self.task.exported)
            save_config(product, folder, self.model_file.rounded_to())
        else:
            self.model_file.save_config(folder)
        self.task.save_extras(folder)
        for name, text in {"README.md": self.task.model_card(self.run), **more}.items():
            if text:
                (folder / name).write_text(text, encoding="utf-8", errors="backslashreplace")

    def pieces(self) -> Iterator[tuple[Key, Tensor]]:
        """Yield views of this rank's elements of the parameters, of their state and averages.

        Raises:
            CheckpointError: a buffer or the optimizer's state has changed form since the start.
        """
        problem = changed_buffer(self.strategy)
        if problem:
            raise CheckpointError(problem)

        averages = {shard.name: average for shard, average in self.average.pairs}
        shards = (*self.strategy.shards(), *self.frozen(stored=True))
        for shard, low, high in written(shards):
            tensors = {
                "frozen" if shard.state_key is None else "parameter": shard.tensor,
                **state_of(self.strategy.optimizer, shard, self.optimizer_form),
            }
            if shard.name in averages:
                tensors["average"] = averages[shard.name]

            for kind, tensor in tensors.items():
                # A scalar is of the whole parameter: who has the first element writes the value.
                if tensor.dim():
                    yield Key(kind, shard.name, shard.start + low), tensor[low:high]
                elif shard.start + low == 0:
                    yield Key(kind, shard.name), tensor

    def buffer_pieces(self) -> Iterator[tuple[Key, Tensor]]:
        """Yield views of the buffers, of which rank 0 writes all."""
        for name, buffer in self.strategy.buffers():
            yield Key("buffer", name), buffer.reshape(-1)

    def leaves_out(self, name: str, tensor: Tensor) -> bool:
        """Return whether no checkpoint holds a tensor: frozen, and not in the exported file."""
        is_frozen = isinstance(tensor, nn.Parameter) and not tensor.requires_grad
        return is_frozen and self.model_file.name(name) is None

    def frozen(self, *, stored: bool) -> Iterator[Shard]:
        """Yield the frozen parameters that checkpoints hold, or those that no checkpoint holds."""
        for shard in self.strategy.shards(trainable=False):
            if (self.model_file.name(shard.name) is not None) == stored:
                yield shard


def written(shards: Iterable[Shard]) -> Iterator[tuple[Shard, int, int]]:
    """Yield ``(shard, low, high)``: the elements of each shard that this rank writes.

    Of n ranks that hold the same range each writes an n-th.
    """
    for shard in shards:
        size, copies = shard.tensor.numel(), shard.copies
        low, high = size * shard.copy // copies, size * (shard.copy + 1) // copies
        if low < high:
            yield shard, low, high
