"""Loading a checkpoint, or the weights of a model folder, whatever layout wrote them.

Each rank reads the ranges that it owns, so no rank ever holds the whole model.
"""

from __future__ import annotations

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
from .codec import decode
from .compatibility import changed_rates, check_same, differences, fingerprint
from .contents import WEIGHTS, Contents
from .discover import MANIFEST, CheckpointInfo, inspect, verify_together
from .optimizer_state import OptimizerStateReader, restore_settings
from .parts import Parts
from .ranges import Ranges, of_model_folder
from .schedule_state import restore_schedule, schedule_state

Place = tuple[str, str]  # kind and name of a tensor in files
Places = Mapping[str, Place]  # by the name in the model


def load(
    parts: Parts, info: CheckpointInfo, *, allow_change: bool
) -> tuple[dict[str, Any], list[str]]:
    """Set a training to where a verified checkpoint was.

    Collective: call on every rank.

    Args:
        allow_change: whether settings that change the numbers may differ.

    Returns:
        The checkpoint's step and counters, and notices.

    Raises:
        ConfigError: the configuration changes the numbers, and that is not allowed.
        CheckpointError: the checkpoint holds another model.
    """
    contents = info.open()
    state, ranges = contents.state, contents.ranges
    before, now = state["mathematics"], fingerprint(parts)

    places = _find_model(parts, contents, info.path)
    notices = _check_same_run(parts, contents, places, now, allowed=allow_change, source=info.path)

    same_optimizer = before["optimizer"] == now["optimizer"]
    notices += _load_tensors(parts, ranges, places, with_optimizer=same_optimizer)
    if not same_optimizer:
        notices.append("the optimizer changed: its state starts fresh")
    if before["optimizer_groups"] == now["optimizer_groups"]:
        # A callback may have changed settings during the run.
        groups = parts.strategy.optimizer.param_groups
        for group, saved in zip(groups, state["group_settings"], strict=False):
            restore_settings(group, saved)
    parts.strategy.load_scaler_state(state["scaler"])
    notices += restore_schedule(parts.schedule, state["schedule"])

    tensor_of = partial(ranges.whole, "user")
    position = decode(state["data"], tensor_of)
    if allow_change and "began" in position:
        position["began"] = 0  # the stream may begin with any sample
    samples, of_data = _restore_data(parts, position)
    parts.task.load_state_dict(decode(state["task"], tensor_of))
    states = dict(state["callbacks"])
    for name, callback in parts.named_callbacks().items():
        if name in states:
            callback.load_state_dict(decode(states[name], tensor_of))
    notices += of_data
    notices += _restore_rng(parts, ranges, state["step"])

    counters = {name: decode(state[name]) for name in parts.counters if name in state}
    return {**counters, "step": state["step"], "samples": samples}, notices


def _find_model(parts: Parts, contents: Contents, source: Path) -> Places:
    """Find each tensor of the model in a checkpoint, which must hold this very model.

    Raises:
        CheckpointError: it does not.
    """
    shapes = {name: shape for name, shape, _ in contents.model}
    base = [name for name, *_, handle in parts.strategy.named_tensors() if parts.leaves_out(handle)]
    places, unused = _find(parts, contents.ranges, WEIGHTS, shapes, source, without=base)

    wrong = [f"{name} is not in the model" for name in unused]
    for name, (_, stored_name) in places.items():
        # The optimizer's state of a shared parameter is stored under its first name.
        if stored_name != name:
            wrong.append(f"{name} is called {stored_name} there")
    if wrong:
        raise _another_model(source, wrong)
    return places


def _check_same_run(
    parts: Parts,
    contents: Contents,
    places: Places,
    now: Mapping[str, Any],
    *,
    allowed: bool,
    source: Path,
) -> list[str]:
    """Compare what decides the numbers of the run. Return a notice for each difference.

    Args:
        now: the ``fingerprint`` of this run.

    Raises:
        ConfigError: there are differences, and they are not allowed.
    """
    state = contents.state
    before = state["mathematics"]
    others = _frozen_differently(parts, places)
    others += changed_rates(before, now, state["schedule"], schedule_state(parts.schedule))
    others += parts.sampled.changes(state.get("content", {}))
    changes = check_same(before, now, others, allowed=allowed, source=source)
    # Callbacks of the config may change numbers, or only look on.
    callbacks = state.get("config", {}).get("callbacks", [])
    changes += differences({"callbacks": callbacks}, {"callbacks": parts.config["callbacks"]})
    return [f"changed since the checkpoint: {line}" for line in changes]


def load_weights(
    parts: Parts,
    path: Path,
    agreement: Agreement,
    *,
    names: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> list[str]:
    """Set parameters and buffers to those of a checkpoint or a model folder. Return notices.

    Everything else stays as it is. Collective: call on every rank.

    Args:
        names: the name of a tensor in the model, by its name in the files of a model folder.
        without: parameters that keep their values.

    Raises:
        CheckpointError: the folder does not hold this model, or is a damaged checkpoint.
    """
    if os.path.lexists(path / MANIFEST):
        return _load_weights_of_checkpoint(parts, path, agreement, without)

    # A folder with the saved part of a model leaves the rest as build_model made it.
    part: Mapping[str, str] = {}
    if os.path.lexists(path / parts.model_file.file):
        part = parts.model_file.names or {}
    if not names:
        names = {name_in_file: name for name, name_in_file in part.items()}
    ranges, shapes = of_model_folder(path, names)
    places, unused = _find(parts, ranges, WEIGHTS, shapes, path, only=part, without=without)
    _load_tensors(parts, ranges, places, with_optimizer=False)

    read = f"starts with the weights of {path}: {len(places)} tensors"
    return [read, *_unused_notice(unused, path)]


def _load_weights_of_checkpoint(
    parts: Parts, path: Path, agreement: Agreement, without: Collection[str]
) -> list[str]:
    """Set parameters and buffers to a checkpoint's, and to its moving average where it has one.

    Collective: call on every rank.
    """
    info = verify_together(inspect(path), agreement)
    contents = info.open()
    shapes = {name: shape for name, shape, _ in contents.model}
    kinds = ("average", *WEIGHTS)
    places, unused = _find(parts, contents.ranges, kinds, shapes, path, without=without)
    _load_tensors(parts, contents.ranges, places, with_optimizer=False)
    return [f"starts with the weights of {path}", *_unused_notice(unused, path)]


def _unused_notice(unused: list[str], path: Path) -> list[str]:
    if not unused:
        return []
    return [f"{len(unused)} tensors of {path} are not in the model: {listed(unused)}"]


def _find(
    parts: Parts,
    ranges: Ranges,
    kinds: tuple[str, ...],
    shapes: Mapping[str, tuple[int, ...]],
    source: Path,
    *,
    only: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> tuple[Places, list[str]]:
    """Find each tensor of the model in files, a shared one under any of its names.

    Args:
        kinds: as which it may be stored. The first is preferred.
        shapes: of the stored tensors, by their names.
        only: the tensors that must be there. By default all.
        without: the tensors that are not looked for.

    Returns:
        The place of each tensor, and the names of stored tensors that the model has not.

    Raises:
        CheckpointError: a tensor is missing, or has another shape.
    """
    names_of: dict[int, list[str]] = {}
    for name, tensor in canonical_state(parts.strategy.model):
        names_of.setdefault(id(tensor), []).append(name)

    places: dict[str, Place] = {}
    wrong = []
    for name, shape, _, handle in parts.strategy.named_tensors():
        if name in without:
            continue
        names = names_of[id(handle)]
        place = _first_stored(ranges, kinds, [other for other in names if other in shapes])
        if place is not None and shapes[place[1]] != shape:
            wrong.append(f"{name} has shape {shapes[place[1]]}, the model's is {shape}")
        elif place is not None:
            places[name] = place
        elif 0 in shape:
            places[name] = (kinds[0], name)  # nothing is read of an empty tensor
        elif not only or any(other in only for other in names):
            wrong.append(f"{name} is missing")
    if wrong:
        raise _another_model(source, wrong)

    in_model = {name for names in names_of.values() for name in names}
    return places, [name for name in shapes if name not in in_model]


def _first_stored(ranges: Ranges, kinds: tuple[str, ...], names: list[str]) -> Place | None:
    """Return the first of these places at which there is a tensor. None if there is none."""
    for kind in kinds:
        for name in names:
            if ranges.holds(kind, name):
                return kind, name
    return None


def _another_model(source: Path, wrong: list[str]) -> CheckpointError:
    more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
    return CheckpointError(f"{source}: does not hold this model: {'; '.join(wrong[:3])}{more}")


def _frozen_differently(parts: Parts, places: Places) -> list[str]:
    """Return how many parameters are trained now that were frozen, and the other way round."""
    thawed = frozen = 0
    for name, _, _, handle in parts.strategy.named_tensors():
        if name in places and isinstance(handle, nn.Parameter):
            kind, _ = places[name]
            thawed += handle.requires_grad and kind == "frozen"
            frozen += not handle.requires_grad and kind == "parameter"

    lines = []
    if thawed:
        lines.append(
            f"{thawed} tensors are trained now that were frozen: their optimizer state starts fresh"
        )
    if frozen:
        lines.append(f"{frozen} tensors are frozen now that were trained")
    return lines


def _load_tensors(
    parts: Parts, ranges: Ranges, places: Places, *, with_optimizer: bool
) -> list[str]:
    """Read parameters, buffers and the moving average, as far as there is one. Return notices.

    Collective: call on every rank.

    Args:
        with_optimizer: read the optimizer's state as well: that of each parameter beside it, which
            is the order of the files.
    """
    strategy = parts.strategy
    notices: list[str] = []

    def read(shard: Shard) -> None:
        if shard.name in places:
            kind, name = places[shard.name]
            ranges.read(kind, name, shard.start, shard.tensor)

    for shard in strategy.shards(trainable=False if with_optimizer else None):
        read(shard)
    if with_optimizer:
        optimizer = OptimizerStateReader(strategy, parts.optimizer_form, ranges)
        for shard in strategy.shards(trainable=True):
            read(shard)
            optimizer.read(shard)
        notices += optimizer.finish()
    strategy.write_back()

    for name, buffer in strategy.buffers():
        if name in places:
            kind, stored_name = places[name]
            flat = torch.empty_like(buffer).reshape(-1)
            ranges.read(kind, stored_name, 0, flat)
            buffer.copy_(flat.view_as(buffer))

    return notices + _load_averages(parts, ranges)


def _load_averages(parts: Parts, ranges: Ranges) -> list[str]:
    """Read the moving averages, where there are any. Others start with the weights."""
    if parts.averages is None:
        return []
    for shard, average in parts.averages:
        if ranges.holds("average", shard.name):
            ranges.read("average", shard.name, shard.start, average)
        else:
            average.copy_(shard.tensor)
    if ranges.names("average"):
        return []
    return ["the checkpoint holds no moving average: it starts with the weights"]


def _restore_data(parts: Parts, saved: dict[str, Any]) -> tuple[int, list[str]]:
    """Set the position in the data. Return it in samples, and notices."""
    fresh = parts.data.state()
    was_stream, is_stream = "stream" in saved, "stream" in fresh
    if was_stream == is_stream:
        return parts.data.restore(saved), []

    if was_stream:
        change = "the training data was a stream and is a data set now"
    else:
        change = "the training data was a data set and is a stream now"
    return fresh["samples"], [f"{change}: it starts at its beginning"]


def _restore_rng(parts: Parts, ranges: Ranges, step: int) -> list[str]:
    """Set the random number generators of this rank. Return notices."""
    layout = parts.layout
    before = len(ranges.names("rng.torch"))  # how many ranks drew numbers of their own
    if before == layout.world_size:
        rank = str(layout.rank)
        states = {}
        for name in rng.GENERATORS:
            if ranges.holds(f"rng.{name}", rank):
                states[name] = ranges.whole(f"rng.{name}", rank)
        rng.write(states)
        return []

    # The generators of so many ranks cannot be given to another number of ranks. New ones must not
    # repeat what was drawn before.
    set_seed(seed_of(int(parts.config["seed"]), step, layout.rank))
    return [
        f"{before} processes before, {layout.world_size} now: random numbers of the model "
        "(dropout) are drawn from new streams; the order of the data stays as it was"
    ]
