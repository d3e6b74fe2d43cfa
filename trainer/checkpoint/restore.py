"""A training set to what a checkpoint holds, or to the weights of a model folder, whatever layout
wrote them.

Each rank reads the ranges that it owns, so no rank ever holds the whole model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import set_seed
from torch import nn

from ..data import rng
from ..data.seeds import seed_of
from ..distributed.agreement import Agreement
from ..errors import CheckpointError
from ..strategies import Shard
from ..strategies.tensors import canonical_state
from ..text import listed
from .checksums import check_read
from .codec import decode, encode_plain
from .compatibility import changed_rates, check_same, fingerprint
from .contents import WEIGHTS
from .discover import MANIFEST, CheckpointInfo, inspect, verify
from .export import ADAPTER_FILE
from .optimizer_state import load_state, restore_settings
from .parts import Parts
from .ranges import Ranges, of_model_folder
from .schedule_state import restore_schedule, schedule_state

Places = Mapping[str, tuple[str, str]]  # (kind, name) in a store, by the name in the model


def load(
    parts: Parts, info: CheckpointInfo, *, allow_change: bool
) -> tuple[dict[str, Any], list[str]]:
    """Go on from a checkpoint that was verified; returns its step and counters, and notices.
    Collective.

    Raises:
        ConfigError: the configuration changes the numbers, and that is not allowed.
        CheckpointError: it holds another model, or what no run has saved.
    """
    contents, strategy = info.open(), parts.strategy
    state, store = contents.state, contents.ranges
    shapes = {name: shape for name, shape, _ in contents.model}
    base = [name for name, *_, handle in strategy.named_tensors() if parts.leaves_out(handle)]
    places, unused = _find(parts, store, WEIGHTS, shapes, info.path, without=base)
    wrong = [f"{name} is not in the model" for name in unused]
    wrong += [
        f"{name} is called {stored} there" for name, (_, stored) in places.items() if stored != name
    ]
    if wrong:
        raise _another_model(info.path, wrong)
    now, before = fingerprint(parts), state["mathematics"]
    later = ("task_settings", "base_weights")  # which checkpoints did not always keep
    before = {**before, **{key: now[key] for key in later if now.get(key) and not before.get(key)}}
    elsewhere = _frozen_otherwise(parts, places)
    elsewhere += changed_rates(before, now, state["schedule"], schedule_state(parts.schedule))
    elsewhere += parts.sampled.changes(state.get("content", {}))
    advice = _how_to_keep(state.get("config", {}), parts)
    changes = check_same(
        before, now, elsewhere, allowed=allow_change, source=info.path, advice=advice
    )
    notices = [f"changed since the checkpoint: {line}" for line in changes]
    notices += _load_tensors(
        parts, store, places, with_state=(same := before["optimizer"] == now["optimizer"])
    )
    notices += ["the optimizer is another one: its state starts anew"] * (not same)
    if before["optimizer_groups"] == now["optimizer_groups"]:  # what a callback changed on the way
        for group, kept in zip(
            strategy.optimizer.param_groups, state["group_settings"], strict=False
        ):
            restore_settings(group, kept)
    strategy.load_scaler_state(state["scaler"])
    notices += restore_schedule(parts.schedule, state["schedule"])
    tensor_of = partial(store.whole, "user")
    position = decode(state["data"], tensor_of)
    if allow_change and "began" in position:
        position["began"] = 0  # whatever the stream begins with
    samples, told = _restore_data(parts, position)
    parts.task.load_state_dict(decode(state["task"], tensor_of))
    states = dict(state["callbacks"])
    if state.get("evaluation_owed"):  # as checkpoints of before 2026-11-24 call it
        states["Evaluation"] = {"pending": True}
    for name, callback in parts.named_callbacks().items():
        if name in states:
            callback.load_state_dict(decode(states[name], tensor_of))
    counters = {name: decode(state[name]) for name in parts.counters if name in state}
    notices += told + _restore_rng(parts, store, state["step"])
    return {**counters, "step": state["step"], "samples": samples}, notices


def _how_to_keep(before: Mapping[str, Any], parts: Parts) -> str:
    """Return the lines of a config that say what a checkpoint's config said where the task's
    defaults differ.
    """
    now: Mapping[str, Any] = encode_plain(parts.config, "config")
    defaults = {
        key: origin for key, origin in parts.strategy.plan.origins.items() if origin.is_default
    }
    lines = [
        f"{key}: {json.dumps(before[key])}"
        for key in defaults
        if key in before and before[key] != now[key]
    ]
    if not lines:
        return ""
    owner = next(iter(defaults.values())).source
    return f"; a key that is not set has the {owner}, and these are the checkpoint's: {', '.join(lines)}"


def load_weights(
    parts: Parts,
    path: Path,
    agreement: Agreement,
    *,
    names: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> list[str]:
    """Set parameters and buffers; everything else stays as it is. Collective; returns notices.

    Args:
        names: what tensors are called in the model, by their names in the files of a model folder.
        without: parameters that keep what they have.

    Raises:
        CheckpointError: the folder does not hold this model, or is a damaged checkpoint.
    """
    adapter: Mapping[str, str] = {}
    kinds: tuple[str, ...] = WEIGHTS
    of_run = os.path.lexists(path / MANIFEST)  # whose files have checksums of their own
    if of_run:
        contents = verify(inspect(path), agreement).open()
        store, kinds = contents.ranges, ("average", *WEIGHTS)
        shapes = {name: shape for name, shape, _ in contents.model}
    else:
        # A folder with the adapter of a peft model leaves the model below it as build_model has
        # made it.
        if os.path.lexists(path / ADAPTER_FILE):
            adapter = parts.model_file.names or {}
        store, shapes = of_model_folder(
            path, names or {written: name for name, written in adapter.items()}
        )
    places, unused = _find(parts, store, kinds, shapes, path, only=adapter, without=without)
    _load_tensors(parts, store, places)
    notices = [f"starts with the weights of {path}"]
    if not of_run:
        notices[0] += (
            f": {len(places)} tensors, checksum {check_read(parts, store, places, path, agreement)}"
        )
    return notices + (
        [f"{len(unused)} tensors of {path} are not in the model: {listed(unused)}"]
        if unused
        else []
    )


def _find(
    parts: Parts,
    store: Ranges,
    kinds: tuple[str, ...],
    shapes: Mapping[str, tuple[int, ...]],
    source: Path,
    *,
    only: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> tuple[Places, list[str]]:
    """Find each tensor of the model in a store, a shared one under any of its names; and name what
    else is there.

    Args:
        kinds: as what it may be stored, the one to prefer first.
        shapes: of what is stored.
        only: the tensors that must be there; by default all.
        without: the tensors that are not looked for.

    Raises:
        CheckpointError: one is missing, or has another shape.
    """
    aliases: dict[int, list[str]] = {}
    for name, tensor in canonical_state(parts.strategy.model):
        aliases.setdefault(id(tensor), []).append(name)
    places, wrong = {}, []
    for name, shape, _, handle in parts.strategy.named_tensors():
        if name in without:
            continue
        names = [other for other in aliases[id(handle)] if other in shapes]
        found = [(kind, other) for kind in kinds for other in names if store.holds(kind, other)]
        if found and shapes[found[0][1]] != shape:
            theirs = shapes[found[0][1]]
            wrong.append(f"{name} has shape {theirs}, the model's is {shape}")
        elif found or 0 in shape:  # nothing is read of an empty one
            places[name] = found[0] if found else (kinds[0], name)
        elif not only or only.keys() & aliases[id(handle)]:
            wrong.append(f"{name} is missing")
    if wrong:
        raise _another_model(source, wrong)
    own = {name for names in aliases.values() for name in names}
    return places, [name for name in shapes if name not in own]


def _another_model(source: Path, wrong: list[str]) -> CheckpointError:
    more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
    return CheckpointError(f"{source}: does not hold this model: {'; '.join(wrong[:3])}{more}")


def _frozen_otherwise(parts: Parts, places: Places) -> list[str]:
    """Say how many parameters learn now and did not, or the other way."""
    named = parts.strategy.named_tensors()
    learns = {
        name: handle.requires_grad
        for name, _, _, handle in named
        if isinstance(handle, nn.Parameter)
    }
    thawed = sum(learns[name] and places[name][0] == "frozen" for name in learns.keys() & places)
    frozen = sum(
        not learns[name] and places[name][0] == "parameter" for name in learns.keys() & places
    )
    said = (
        [f"{thawed} tensors learn now that were frozen: their optimizer state starts anew"]
        if thawed
        else []
    )
    return said + ([f"{frozen} tensors are frozen now that learnt"] if frozen else [])


def _load_tensors(
    parts: Parts, store: Ranges, places: Places, *, with_state: bool = False
) -> list[str]:
    """Read parameters, buffers and the moving average, where the store has one; returns notices.

    Args:
        with_state: read the optimizer's state as well, of each parameter beside it, as it stands in
            the files.
    """
    strategy = parts.strategy

    def read(shard: Shard) -> None:
        if shard.name in places:
            store.read(*places[shard.name], shard.start, shard.tensor, shard.columns)

    with store.kept_open():
        for shard in strategy.shards(trainable=False if with_state else None):
            read(shard)
        notices = load_state(strategy, parts.optimizer_form, store, read) if with_state else []
    strategy.write_back()
    for name, buffer in strategy.buffers():
        if name in places:
            flat = torch.empty_like(buffer).reshape(-1)
            store.read(*places[name], 0, flat)
            buffer.copy_(flat.view_as(buffer))
    for shard, average in parts.averages or ():
        if store.holds("average", shard.name):
            store.read("average", shard.name, shard.start, average, shard.columns)
        else:
            average.copy_(shard.tensor)
    lacks = parts.averages is not None and not store.names("average")
    return notices + ["the checkpoint holds no moving average: it starts with the weights"] * lacks


def _restore_data(parts: Parts, data: Any) -> tuple[int, list[str]]:
    """Set the position in the data; returns it, and a notice where it was a position in data of
    another sort.
    """
    fresh = parts.data.state()
    if ("stream" in data) == ("stream" in fresh):
        data = {"began": 0, **data} if "began" in fresh else data  # which older checkpoints lack
        return parts.data.restore(data), []
    was, now = ("a stream", "a data set") if "stream" in data else ("a data set", "a stream")
    return fresh["samples"], [
        f"the training data was {was} and is {now} now: it starts at its beginning"
    ]


def _restore_rng(parts: Parts, store: Ranges, step: int) -> list[str]:
    before, layout = len(store.names("rng.torch")), parts.layout
    if before == layout.world_size:
        rank = str(layout.rank)
        known = {
            name: store.whole(f"rng.{name}", rank)
            for name in rng.GENERATORS
            if store.holds(f"rng.{name}", rank)
        }
        rng.write(known)
        return []
    # Streams of so many ranks cannot be dealt to others; new ones must not repeat what was drawn
    # before.
    set_seed(seed_of(int(parts.config["seed"]), step, layout.rank))
    return [
        f"{before} processes before, {layout.world_size} now: random numbers of the model (dropout) are drawn from new "
        "streams; the order of the data goes on as it was"
    ]
