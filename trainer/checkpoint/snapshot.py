"""What a checkpoint holds, taken from a training on every rank; ``restore.py`` gives it back."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ..strategies import Shard
from ..text import versions
from . import rng
from .codec import encode
from .compatibility import mathematics
from .contents import STATE, state_text
from .export import changed_buffer, save_config
from .optimizer_state import settings, state_of
from .ranges import FileFact, Key, write_file, write_pieces
from .schedule_state import schedule_state
from .untrusted import parts_of

if TYPE_CHECKING:
    from ..state import TrainState


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """A rank's part of a checkpoint, in host memory.

    Args:
        facts: for the manifest; the same on every rank.
        pieces: what this rank owns.
        documents: other files by name; on the main process only.
    """

    step: int
    rank: int
    facts: Mapping[str, Any]
    pieces: list[tuple[str, Tensor]]
    documents: Mapping[str, bytes]

    def write(self, folder: Path) -> list[FileFact]:
        """Write this rank's files; they are on the disk when it returns."""
        files = [write_pieces(folder / f"rank-{self.rank:05d}.safetensors", self.pieces)]
        for name, content in self.documents.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            files.append(write_file(folder / name, [content], name))
        return files


@dataclass(frozen=True, kw_only=True)
class Documents:
    """What the main process writes beside the ranges: ``files`` by name, and the tensors that state.json names."""

    files: Mapping[str, bytes] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)


def documents_of(run: TrainState, extras: Mapping[str, bytes]) -> Documents:
    """Make state.json, and put the small files that belong beside an exported model with it. On the main process.

    Raises:
        CheckpointError: the state of the task or of a callback cannot be saved.
    """
    tensors: dict[str, Tensor] = {}
    try:
        text = state_text(_state(run, tensors))
    except RecursionError:
        raise CheckpointError("the state of the task or of a callback is nested too deeply, or holds itself") from None
    return Documents(files={STATE: text, **{f"extras/{name}": body for name, body in extras.items()}}, tensors=tensors)


def take(run: TrainState, documents: Documents, *, copied: bool) -> Snapshot:
    """Take what this rank owns to host memory. Every rank calls it; nothing is exchanged.

    Args:
        copied: training goes on while it is written; otherwise what lies in host memory already is not copied.
    """
    rank = run.accelerator.process_index
    pieces = [(str(key), tensor.detach().to("cpu", copy=copied).contiguous()) for key, tensor in live_pieces(run)]
    pieces += [(f"rng.{name}/{rank}/0", tensor) for name, tensor in rng.read().items()]
    pieces += [(f"user/{name}/0", tensor) for name, tensor in documents.tensors.items()]
    plan = run.plan
    facts = {"samples": run.samples, "strategy": plan.strategy, "world_size": plan.world_size}
    return Snapshot(step=run.step, rank=rank, facts=facts, pieces=pieces, documents=documents.files)


@torch.no_grad()
def not_finite(run: TrainState) -> str:
    """Name the first parameter of which this rank holds a value that is no finite number; empty if there is none."""

    def is_finite(tensor: Tensor) -> bool:
        # A sum shows them at a fifteenth of the cost; one that only ran over is looked at again.
        return bool(tensor.sum().isfinite()) or bool(tensor.isfinite().all())

    return next((shard.name for shard in run.strategy.shards() if not is_finite(shard.tensor)), "")


def unsavable(run: TrainState) -> str:
    """Say why this rank cannot give its part of a checkpoint; empty if it can."""
    try:
        for _ in live_pieces(run):
            pass
    except CheckpointError as error:
        return str(error)
    return changed_buffer(run.strategy)


def live_pieces(run: TrainState) -> Iterator[tuple[Key, Tensor]]:
    """Views of all that this rank writes of the model and the optimizer; together the ranks write each element once."""
    strategy, form = run.strategy, run.optimizer_form
    averages = {shard.name: average for shard, average in run.average.parts()}
    for shard, low, high in _dealt(run, strategy.shards()):
        start = shard.start + low
        yield Key(kind="parameter", name=shard.name, start=start), shard.tensor[low:high]
        for kind, tensor in state_of(strategy.optimizer, shard, form):
            if tensor.dim():
                yield Key(kind=kind, name=shard.name, start=start), tensor[low:high]
            elif start == 0:  # a value of the whole parameter: whoever has its first element writes it
                yield Key(kind=kind, name=shard.name, start=0), tensor
        if shard.name in averages:
            yield Key(kind="average", name=shard.name, start=start), averages[shard.name][low:high]
    for shard, low, high in _dealt(run, strategy.frozen_shards()):
        yield Key(kind="frozen", name=shard.name, start=shard.start + low), shard.tensor[low:high]
    if run.is_main:
        for name, buffer in strategy.buffers():
            yield Key(kind="buffer", name=name, start=0), buffer.detach().reshape(-1)


def _dealt(run: TrainState, held: Iterable[Shard]) -> Iterator[tuple[Shard, int, int]]:
    """``(shard, low, high)``: the part to write. What every rank has is cut into equal parts, one a rank."""
    shards = list(held)
    total = sum(shard.tensor.numel() for shard in shards if shard.copied)
    rank, world = run.accelerator.process_index, run.plan.world_size
    first, last = total * rank // world, total * (rank + 1) // world
    at = 0
    for shard in shards:
        low, high = 0, shard.tensor.numel()
        if shard.copied:
            low, high, at = max(0, first - at), min(high, last - at), at + high
        if low < high:
            yield shard, low, high


def bytes_of(run: TrainState) -> int:
    """How much this rank will write, to within some kilobytes; known before the optimizer has any state."""
    strategy, form = run.strategy, run.optimizer_form
    state = sum(dtype.itemsize for dtype in form.ranges.values())
    state += 4 if run.average.parts() else 0
    learning, frozen = _dealt(run, strategy.shards()), _dealt(run, strategy.frozen_shards())
    total = sum((high - low) * (shard.tensor.itemsize + state) for shard, low, high in learning)
    total += sum((high - low) * shard.tensor.itemsize for shard, low, high in frozen)
    if run.is_main:
        total += sum(buffer.numel() * buffer.itemsize for _, buffer in strategy.buffers())
    return total


def extras_of(run: TrainState) -> dict[str, bytes]:
    """Read the small files beside an exported model, by their names, so that a checkpoint can be exported on its own.

    Raises:
        CheckpointError: the task gives one a name that no checkpoint takes.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_config(run.model, folder)
        run.task.save_extras(folder)
        files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
        for file in files:
            parts_of(file)
        return {file: path.read_bytes() for file, path in files.items()}


def model_of(run: TrainState) -> list[list[Any]]:
    """``[name, shape, dtype]`` of what an exported model holds, in its order."""
    named = run.strategy.named_tensors()
    return [[name, list(shape), str(dtype).removeprefix("torch.")] for name, shape, dtype, _ in named]


def _state(run: TrainState, tensors: dict[str, Tensor]) -> dict[str, Any]:
    named = named_callbacks(run)
    return {
        "step": run.step,
        "samples": run.samples,
        "schedule": schedule_state(run.schedule),
        "data": encode(run.train_data.state(), tensors, "data"),
        "skipped_steps": run.skipped_steps,
        "skipped_in_a_row": run.skipped_in_a_row,
        "last_evaluation": encode(run.last_evaluation, tensors, "evaluation"),
        "scaler": run.strategy.scaler_state(),
        "group_settings": encode([settings(g) for g in run.strategy.optimizer.param_groups], tensors, "group_settings"),
        "task": encode(run.task.state_dict(), tensors, "task"),
        "callbacks": {name: encode(callback.state_dict(), tensors, name) for name, callback in named.items()},
        "model": model_of(run),
        **({} if run.model_file.names is None else {"export": dataclasses.asdict(run.model_file)}),
        "mathematics": mathematics(run),
        "config": _for_people(dataclasses.asdict(run.config), "config"),
        "plan": _for_people(run.plan.as_dict(), "plan"),
        "versions": versions(),
    }


def _for_people(value: Any, path: str) -> Any:
    return encode(json.loads(json.dumps(value, default=str)), {}, path)


def named_callbacks(run: TrainState) -> dict[str, Any]:
    """Callbacks by class name, with a number for the second of a class and so on."""
    named: dict[str, Any] = {}
    for callback in run.callbacks:
        name = type(callback).__name__
        same = sum(other == name or other.startswith(f"{name}#") for other in named)
        named[f"{name}#{same + 1}" if same else name] = callback
    return named
