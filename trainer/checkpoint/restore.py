"""A checkpoint given back to a training of any layout."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch
from accelerate.utils import set_seed
from torch import Tensor

from ..errors import CheckpointError
from ..items import seed_of
from . import rng
from .mathematics import check_model, check_same, mathematics
from .optimizer import load_state
from .ranges import Ranges, of_rank_files
from .rates import restore_schedule
from .state import model_of, named_callbacks
from .store import STATE, Found
from .user import decode

if TYPE_CHECKING:
    from ..train_state import TrainState


def restore(run: TrainState, found: Found) -> list[str]:
    """Continue from a checkpoint that was verified. Every rank enters; returns notices, the same on every rank.

    Raises:
        ConfigError: the configuration changes the numbers, and that is not allowed.
        CheckpointError: it holds another model.
    """
    state = json.loads((found.path / STATE).read_text(encoding="utf-8"))
    check_model(state["model"], model_of(run), str(found.path))
    allowed = run.config.allow_config_change
    now = mathematics(run)
    notices = [
        f"changed since the checkpoint: {line}"
        for line in check_same(state["mathematics"], now, allowed=allowed, source=str(found.path))
    ]
    store = of_rank_files(found.path / name for name in found.files if name.endswith(".safetensors"))
    notices += _load_tensors(run, store, same_optimizer=state["mathematics"]["optimizer"] == now["optimizer"])
    if state["mathematics"]["optimizer_groups"] == now["optimizer_groups"]:  # what a callback changed on the way
        for group, kept in zip(run.strategy.optimizer.param_groups, state["group_settings"], strict=True):
            group.update({k: tuple(v) if isinstance(group.get(k), tuple) else v for k, v in kept.items()})
    run.strategy.load_scaler_state(state["scaler"])
    run.step = state["step"]
    run.skipped_steps, run.skipped_in_a_row = state["skipped_steps"], state["skipped_in_a_row"]
    run.last_evaluation = decode(state["last_evaluation"], _no_tensor)
    notices += restore_schedule(run.schedule, state["schedule"])

    def tensor_of(name: str) -> Tensor:
        return store.whole("user", name)

    run.samples = run.train_data.restore(decode(state["data"], tensor_of))
    run.task.load_state_dict(decode(state["task"], tensor_of))
    for name, callback in named_callbacks(run).items():
        if name in state["callbacks"]:
            callback.load_state_dict(decode(state["callbacks"][name], tensor_of))
    return notices + _restore_rng(run, store, int(found.manifest["world_size"]))


def _load_tensors(run: TrainState, store: Ranges, *, same_optimizer: bool) -> list[str]:
    strategy = run.strategy
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
    for shard, average in run.average.parts():
        store.read("average" if shard.name in averaged else "parameter", shard.name, shard.start, average)
    if run.config.ema_decay is not None and not averaged:
        notices.append("the checkpoint holds no moving average: it starts with the weights")
    if not same_optimizer:
        return [*notices, "the optimizer is another one: its state starts anew"]
    return notices + load_state(strategy, shards, run.optimizer_form, store)


def _restore_rng(run: TrainState, store: Ranges, world: int) -> list[str]:
    rank, now = run.accelerator.process_index, run.plan.world_size
    if world == now:
        names = ("python", "python.normal", "numpy", "numpy.normal", "torch", "cuda")
        known = {name: store.whole(f"rng.{name}", str(rank)) for name in names if store.numel(f"rng.{name}", str(rank))}
        rng.write(known)
        return []
    # Streams of so many ranks cannot be dealt to others; new ones must not repeat what was drawn before.
    set_seed(seed_of(run.config.seed, run.step, rank))
    return [
        f"{world} processes before, {now} now: random numbers of the model (dropout) are drawn from new streams; "
        "the order of the data goes on as it was"
    ]


def _no_tensor(name: str) -> Tensor:
    raise CheckpointError(f"{name}: evaluation values are numbers")
