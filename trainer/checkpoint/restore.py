"""A checkpoint given back to a training of any layout."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from accelerate.utils import set_seed
from torch import Tensor, nn

from ..data.augment import seed_of
from ..errors import CheckpointError, ConfigError, Origin, Problem
from . import rng
from .codec import decode, refuse_tensor
from .compatibility import check_model, check_same, mathematics
from .contents import Contents
from .discover import Found
from .optimizer_state import load_state, restore_settings
from .ranges import Ranges
from .schedule_state import restore_schedule
from .snapshot import model_of, named_callbacks
from .untrusted import is_count

if TYPE_CHECKING:
    from ..state import TrainState


def restore(run: TrainState, found: Found) -> list[str]:
    """Continue from a checkpoint that was verified. Collective; returns notices, the same on every rank.

    Raises:
        ConfigError: the run would end before the checkpoint, or the configuration changes the numbers and that is not
            allowed.
        CheckpointError: it holds another model, or what no run has saved.
    """
    contents, config = found.open(), run.config
    state, store = contents.state, contents.ranges
    check_model(state["model"], model_of(run), str(found.path))
    if state["step"] > run.total_steps:
        key = "max_steps" if config.max_steps == run.total_steps else "epochs"
        end, at = run.total_steps, state["step"]
        rule = f"ends the run at step {end}, and {found.path} is at step {at} already; raise it"
        raise ConfigError(Problem(origin=Origin("resume", key=key), value=getattr(config, key), rule=rule))
    now = mathematics(run)
    kinds, moved = _kinds(run, contents)
    before = state["mathematics"]
    if not before.get("task_settings"):  # of a task that was built in Python checkpoints did not always keep them
        before = {**before, "task_settings": now["task_settings"]}
    changed = check_same(before, now, moved, allowed=config.allow_config_change, source=str(found.path))
    notices = [f"changed since the checkpoint: {line}" for line in changed]
    notices += _load_tensors(run, store, kinds, same_optimizer=before["optimizer"] == now["optimizer"])
    if before["optimizer_groups"] == now["optimizer_groups"]:  # what a callback changed on the way
        for group, kept in zip(run.strategy.optimizer.param_groups, state["group_settings"], strict=False):
            restore_settings(group, kept)
    run.strategy.load_scaler_state(state["scaler"])
    run.step = state["step"]
    run.skipped_steps, run.skipped_in_a_row = state["skipped_steps"], state["skipped_in_a_row"]
    run.last_evaluation = decode(state["last_evaluation"], refuse_tensor)
    notices += restore_schedule(run.schedule, state["schedule"])

    def tensor_of(name: str) -> Tensor:
        return store.whole("user", name)

    notices += _restore_data(run, decode(state["data"], tensor_of))
    run.task.load_state_dict(decode(state["task"], tensor_of))
    for name, callback in named_callbacks(run).items():
        if name in state["callbacks"]:
            callback.load_state_dict(decode(state["callbacks"][name], tensor_of))
    return notices + _restore_rng(run, store, int(found.manifest["world_size"]))


def _kinds(run: TrainState, contents: Contents) -> tuple[dict[str, str], list[str]]:
    """As what each parameter of the model is stored, and in words how many learn now and did not, or the other way."""
    named = run.strategy.named_tensors()
    learns = {name: handle.requires_grad for name, _, _, handle in named if isinstance(handle, nn.Parameter)}
    kinds = {name: contents.kind(name) or "parameter" for name in learns}
    thawed = sum(learns[name] and kind == "frozen" for name, kind in kinds.items())
    frozen = sum(not learns[name] and kind == "parameter" for name, kind in kinds.items())
    moved = [f"{thawed} tensors learn now that were frozen: their optimizer state starts anew"] if thawed else []
    return kinds, moved + ([f"{frozen} tensors are frozen now that learnt"] if frozen else [])


def _load_tensors(run: TrainState, store: Ranges, kinds: Mapping[str, str], *, same_optimizer: bool) -> list[str]:
    strategy = run.strategy
    shards = list(strategy.shards())
    for shard in (*shards, *strategy.frozen_shards()):
        store.read(kinds[shard.name], shard.name, shard.start, shard.tensor)
    strategy.write_back()
    for name, buffer in strategy.buffers():
        flat = torch.empty_like(buffer).reshape(-1)
        store.read("buffer", name, 0, flat)
        buffer.copy_(flat.view_as(buffer))
    averaged = set(store.names("average"))
    notices = []
    for shard, average in run.average.parts():
        kind = "average" if shard.name in averaged else kinds[shard.name]
        store.read(kind, shard.name, shard.start, average)
    if run.config.ema_decay is not None and not averaged:
        notices.append("the checkpoint holds no moving average: it starts with the weights")
    if not same_optimizer:
        return [*notices, "the optimizer is another one: its state starts anew"]
    return notices + load_state(strategy, shards, run.optimizer_form, store)


def _restore_data(run: TrainState, data: Any) -> list[str]:
    """Set the position in the data; returns a notice where it was a position in data of another sort."""
    if data.keys() == run.train_data.state().keys():
        if not all(is_count(data[key]) for key in data.keys() - {"stream"}):
            raise CheckpointError(f"state.json: {data!r} is no position in the data")
        run.samples = run.train_data.restore(data)
        lost = run.train_data.lost_on_resume()
        return [lost] if lost else []
    was, now = ("a stream", "a data set") if "stream" in data else ("a data set", "a stream")
    return [f"the training data was {was} and is {now} now: it starts at its beginning"]


def _restore_rng(run: TrainState, store: Ranges, world: int) -> list[str]:
    rank, now = run.accelerator.process_index, run.plan.world_size
    if world == now:
        names = ("python", "python.normal", "numpy", "numpy.normal", "torch", "cuda")
        known = {name: store.whole(f"rng.{name}", str(rank)) for name in names if store.numel(f"rng.{name}", str(rank))}
        try:
            rng.write(known)
        except (KeyError, TypeError, ValueError, OverflowError, RuntimeError, AssertionError) as error:
            raise CheckpointError(f"the random number generators do not take what was saved: {error!r}") from None
        return []
    # Streams of so many ranks cannot be dealt to others; new ones must not repeat what was drawn before.
    set_seed(seed_of(run.config.seed, run.step, rank))
    order = "" if run.train_data.lost_on_resume() else "; the order of the data goes on as it was"
    return [
        f"{world} processes before, {now} now: random numbers of the model (dropout) are drawn from new streams{order}"
    ]
