"""What a checkpoint holds: taken from a trainer on every rank, and given back to one of any layout."""

from __future__ import annotations

import dataclasses
import json
import random
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import set_seed
from torch import Tensor

from ..banner import versions
from ..errors import CheckpointError
from ..export import save_config
from ..strategies import Shard
from . import rng
from .mathematics import check_model, check_same, mathematics
from .optimizer import load_state, settings, state_of
from .ranges import FileFact, Key, Ranges, of_rank_files, write_file, write_pieces
from .store import STATE, Found
from .user import decode, encode

if TYPE_CHECKING:
    from ..loop import Trainer


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


# -- taking it ------------------------------------------------------------------------------------


def take(trainer: Trainer, extras: Mapping[str, bytes]) -> Snapshot:
    """Copy what this rank owns to host memory. Every rank enters; nothing is exchanged."""
    rank = trainer.accelerator.process_index
    pieces = [(str(key), tensor.to("cpu", copy=True)) for key, tensor in live_pieces(trainer)]
    pieces += [(f"rng.{name}/{rank}/0", tensor) for name, tensor in rng.read().items()]
    documents: dict[str, bytes] = {}
    if trainer.is_main:
        tensors: dict[str, Tensor] = {}
        text = json.dumps(_state(trainer, tensors), indent=1, allow_nan=False) + "\n"
        pieces += [(f"user/{name}/0", tensor) for name, tensor in tensors.items()]
        documents = {STATE: text.encode(), **{f"extras/{name}": content for name, content in extras.items()}}
    plan = trainer.plan
    facts = {"samples": trainer.samples, "strategy": plan.strategy, "world_size": plan.world_size}
    return Snapshot(step=trainer.step, rank=rank, facts=facts, pieces=pieces, documents=documents)


def live_pieces(trainer: Trainer) -> Iterator[tuple[Key, Tensor]]:
    """Views of all that this rank writes of the model and the optimizer; together the ranks write each element once."""
    strategy, form = trainer.strategy, trainer.optimizer_form
    averages = {shard.name: average for shard, average in trainer.average.parts()}
    for shard, low, high in _dealt(trainer, strategy.shards()):
        start = shard.start + low
        yield Key(kind="parameter", name=shard.name, start=start), shard.tensor[low:high]
        for kind, tensor in state_of(strategy.optimizer, shard, form):
            if tensor.dim():
                yield Key(kind=kind, name=shard.name, start=start), tensor[low:high]
            elif start == 0:  # a value of the whole parameter: whoever has its first element writes it
                yield Key(kind=kind, name=shard.name, start=0), tensor
        if shard.name in averages:
            yield Key(kind="average", name=shard.name, start=start), averages[shard.name][low:high]
    for shard, low, high in _dealt(trainer, strategy.frozen_shards()):
        yield Key(kind="frozen", name=shard.name, start=shard.start + low), shard.tensor[low:high]
    if trainer.is_main:
        for name, buffer in strategy.buffers():
            yield Key(kind="buffer", name=name, start=0), buffer.detach().reshape(-1)


def _dealt(trainer: Trainer, held: Iterable[Shard]) -> Iterator[tuple[Shard, int, int]]:
    """``(shard, low, high)``: the part to write. What every rank has is cut into equal parts, one a rank."""
    shards = list(held)
    total = sum(shard.tensor.numel() for shard in shards if shard.copied)
    rank, world = trainer.accelerator.process_index, trainer.plan.world_size
    first, last = total * rank // world, total * (rank + 1) // world
    at = 0
    for shard in shards:
        low, high = 0, shard.tensor.numel()
        if shard.copied:
            low, high, at = max(0, first - at), min(high, last - at), at + high
        if low < high:
            yield shard, low, high


def bytes_of(trainer: Trainer) -> int:
    """How much this rank will write, to within some kilobytes; known before the optimizer has any state."""
    strategy, form = trainer.strategy, trainer.optimizer_form
    state = sum(dtype.itemsize for dtype in form.ranges.values())
    state += 4 if trainer.average.parts() else 0
    learning, frozen = _dealt(trainer, strategy.shards()), _dealt(trainer, strategy.frozen_shards())
    total = sum((high - low) * (shard.tensor.itemsize + state) for shard, low, high in learning)
    total += sum((high - low) * shard.tensor.itemsize for shard, low, high in frozen)
    if trainer.is_main:
        total += sum(buffer.numel() * buffer.itemsize for _, buffer in strategy.buffers())
    return total


def extras_of(trainer: Trainer) -> dict[str, bytes]:
    """The small files beside an exported model, by their names; so that a checkpoint can be exported on its own."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_config(trainer.model, folder)
        trainer.task.save_extras(folder)
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def model_of(trainer: Trainer) -> list[list[Any]]:
    """``[name, shape, dtype]`` of what an exported model holds, in its order."""
    named = trainer.strategy.named_tensors()
    return [[name, list(shape), str(dtype).removeprefix("torch.")] for name, shape, dtype, _ in named]


def _state(trainer: Trainer, tensors: dict[str, Tensor]) -> dict[str, Any]:
    named = named_callbacks(trainer)
    return {
        "step": trainer.step,
        "samples": trainer.samples,
        "schedule_steps": trainer.schedule.last_epoch,
        "skipped_steps": trainer.skipped_steps,
        "skipped_in_a_row": trainer.skipped_in_a_row,
        "last_evaluation": encode(trainer.last_evaluation, tensors, "evaluation"),
        "scaler": trainer.strategy.scaler_state(),
        "group_settings": [settings(group) for group in trainer.strategy.optimizer.param_groups],
        "task": encode(trainer.task.state_dict(), tensors, "task"),
        "callbacks": {name: encode(callback.state_dict(), tensors, name) for name, callback in named.items()},
        "model": model_of(trainer),
        "mathematics": mathematics(trainer),
        "config": dataclasses.asdict(trainer.config),
        "plan": json.loads(json.dumps(trainer.plan.as_dict(), default=str)),
        "versions": versions(),
    }


def named_callbacks(trainer: Trainer) -> dict[str, Any]:
    """Callbacks by class name, with a number for the second of a class and so on."""
    named: dict[str, Any] = {}
    for callback in trainer.callbacks:
        name = type(callback).__name__
        same = sum(other == name or other.startswith(f"{name}#") for other in named)
        named[f"{name}#{same + 1}" if same else name] = callback
    return named


# -- giving it back -------------------------------------------------------------------------------


def restore(trainer: Trainer, found: Found) -> list[str]:
    """Continue from a checkpoint that was verified. Every rank enters; returns notices, the same on every rank.

    Raises:
        ConfigError: the configuration changes the numbers, and that is not allowed.
        CheckpointError: it holds another model.
    """
    state = json.loads((found.path / STATE).read_text(encoding="utf-8"))
    check_model(state["model"], model_of(trainer), str(found.path))
    allowed = trainer.config.allow_config_change
    now = mathematics(trainer)
    notices = [
        f"changed since the checkpoint: {line}"
        for line in check_same(state["mathematics"], now, allowed=allowed, source=str(found.path))
    ]
    store = of_rank_files(found.path / name for name in found.files if name.endswith(".safetensors"))
    notices += _load_tensors(trainer, store, same_optimizer=state["mathematics"]["optimizer"] == now["optimizer"])
    if state["mathematics"]["optimizer_groups"] == now["optimizer_groups"]:  # what a callback changed on the way
        for group, kept in zip(trainer.strategy.optimizer.param_groups, state["group_settings"], strict=True):
            group.update({k: tuple(v) if isinstance(group[k], tuple) else v for k, v in kept.items()})
    trainer.strategy.load_scaler_state(state["scaler"])
    trainer.step, trainer.samples = state["step"], state["samples"]
    trainer.skipped_steps, trainer.skipped_in_a_row = state["skipped_steps"], state["skipped_in_a_row"]
    trainer.last_evaluation = decode(state["last_evaluation"], _no_tensor)
    _move_schedule(trainer, state["schedule_steps"])

    def tensor_of(name: str) -> Tensor:
        return store.whole("user", name)

    trainer.task.load_state_dict(decode(state["task"], tensor_of))
    for name, callback in named_callbacks(trainer).items():
        if name in state["callbacks"]:
            callback.load_state_dict(decode(state["callbacks"][name], tensor_of))
    return notices + _restore_rng(trainer, store, int(found.manifest["world_size"]))


def _load_tensors(trainer: Trainer, store: Ranges, *, same_optimizer: bool) -> list[str]:
    strategy = trainer.strategy
    shards = list(strategy.shards())
    for shard in shards:
        store.read("parameter", shard.name, shard.start, shard.tensor)
    for shard in strategy.frozen_shards():
        store.read("frozen", shard.name, shard.start, shard.tensor)
    strategy.write_back()
    for name, buffer in strategy.buffers():
        flat = torch.empty_like(buffer).reshape(-1)
        store.read("buffer", name, 0, flat)
        buffer.copy_(flat.view_as(buffer))
    averaged = set(store.names("average"))
    notices = []
    for shard, average in trainer.average.parts():
        store.read("average" if shard.name in averaged else "parameter", shard.name, shard.start, average)
    if trainer.config.ema_decay is not None and not averaged:
        notices.append("the checkpoint holds no moving average: it starts with the weights")
    if not same_optimizer:
        return [*notices, "the optimizer is another one: its state starts anew"]
    return notices + load_state(strategy, shards, trainer.optimizer_form, store)


def _move_schedule(trainer: Trainer, steps: int) -> None:
    """The rate after so many steps, from the schedule that runs now; its own arithmetic, hence the same bits."""
    schedule = trainer.schedule
    schedule.last_epoch = steps
    schedule._step_count = steps + 1
    rates: list[Any] = [base * f(steps) for base, f in zip(schedule.base_lrs, schedule.lr_lambdas, strict=True)]
    for group, rate in zip(schedule.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    schedule._last_lr = rates


def _restore_rng(trainer: Trainer, store: Ranges, world: int) -> list[str]:
    rank, now = trainer.accelerator.process_index, trainer.plan.world_size
    if world == now:
        names = ("python", "python.normal", "numpy", "numpy.normal", "torch", "cuda")
        known = {name: store.whole(f"rng.{name}", str(rank)) for name in names if store.numel(f"rng.{name}", str(rank))}
        rng.write(known)
        return []
    # Streams of so many ranks cannot be dealt to others; new ones must not repeat what was drawn before.
    set_seed(random.Random(f"{trainer.config.seed} {trainer.step} {rank}").getrandbits(32))
    return [
        f"{world} processes before, {now} now: random numbers of the model (dropout) are drawn from new streams; "
        "the order of the data goes on as it was"
    ]


def _no_tensor(name: str) -> Tensor:
    raise CheckpointError(f"{name}: evaluation values are numbers")
