"""Loading a checkpoint, or the weights of a model folder, whatever layout wrote them.

Each rank reads the ranges that it owns, so no rank ever holds the whole model.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
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
from .compatibility import changed_rates, check_same, differences
from .contents import WEIGHTS, Contents
from .decode import decode
from .discover import CheckpointInfo, inspect, verify_together
from .parts import Parts
from .ranges import Ranges, of_model_folder
from .restore_optimizer import OptimizerStateReader, restore_schedule, restore_settings
from .schedule_state import schedule_state
from .snapshot import fingerprint
from .store import MANIFEST

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
        CheckpointError: the checkpoint holds another model, or another sort of data.
    """
    contents = info.open()
    state, ranges = contents.state, contents.ranges
    before, now = state["mathematics"], fingerprint(parts)

    places = _find_model(parts, contents, info.path)
    others = _frozen_differently(parts, places)
    others += changed_rates(before, now, state["schedule"], schedule_state(parts.schedule))
    others += parts.sampled.changes(state.get("content", {}))
    changes = check_same(before, now, others, allowed=allow_change, source=info.path)
    callbacks = state.get("config", {}).get("callbacks", [])
    changes += differences({"callbacks": callbacks}, {"callbacks": parts.config["callbacks"]})
    notices = [f"changed since the checkpoint: {line}" for line in changes]

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
    if ("stream" in position) != ("stream" in parts.data.state()):
        raise CheckpointError(
            f"{info.path}: the training data is a stream in one of the two runs and a data set in "
            "the other; start a new run with weights: instead of resume:"
        )
    if allow_change and "began" in position:
        position["began"] = 0  # the stream may begin with any sample
    samples = parts.data.restore(position)
    parts.task.load_state_dict(decode(state["task"], tensor_of))
    for name, callback in parts.named_callbacks().items():
        if name in state["callbacks"]:
            callback.load_state_dict(decode(state["callbacks"][name], tensor_of))
    notices += _restore_rng(parts, ranges, state["step"])

    counters = {name: decode(state[name]) for name in parts.counters if name in state}
    return {**counters, "step": state["step"], "samples": samples}, notices


def _find_model(parts: Parts, contents: Contents, source: Path) -> Places:
    """Find each tensor of the model in a checkpoint, which must hold this very model.

    Raises:
        CheckpointError: the checkpoint holds another model.
    """
    base = [name for name, *_, handle in parts.strategy.named_tensors() if parts.leaves_out(handle)]
    shapes = {name: shape for name, shape, _ in contents.model}
    places, unused = _find(parts, contents.ranges, WEIGHTS, shapes, source, without=base)

    wrong = [f"{name} is not in the model" for name in unused]
    for name, (_, stored_name) in places.items():
        # The optimizer's state of a shared parameter is stored under its first name.
        if stored_name != name:
            wrong.append(f"{name} is called {stored_name} there")
    _check_none(wrong, source)
    return places


def load_weights(
    parts: Parts,
    path: Path,
    agreement: Agreement,
    *,
    names: Mapping[str, str] | None = None,
    without: Collection[str] = (),
) -> list[str]:
    """Set parameters and buffers to those of a checkpoint or a model folder. Return notices.

    Of a checkpoint with a moving average, the average is read. Everything else of the training
    stays. Collective: call on every rank.

    Args:
        names: the name of a tensor in the model, by its name in the files of a model folder.
        without: parameters that keep their values.

    Raises:
        CheckpointError: the folder does not hold this model, or is a damaged checkpoint.
    """
    part: Mapping[str, str] = {}
    if os.path.lexists(path / MANIFEST):
        contents = verify_together(inspect(path), agreement).open()
        ranges = contents.ranges
        shapes = {name: shape for name, shape, _ in contents.model}
    else:
        # A folder with the saved part of a model leaves the rest as build_model made it.
        if os.path.lexists(path / parts.model_file.file):
            part = parts.model_file.names or {}
        names = names or {name_in_file: name for name, name_in_file in part.items()}
        ranges, shapes = of_model_folder(path, names)

    kinds = ("average", *WEIGHTS)
    places, unused = _find(parts, ranges, kinds, shapes, path, only=part, without=without)
    _load_tensors(parts, ranges, places, with_optimizer=False)

    notices = [f"starts with the weights of {path}: {len(places)} tensors"]
    if unused:
        notices.append(f"{len(unused)} tensors of {path} are not in the model: {listed(unused)}")
    return notices


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
        names = [other for other in names_of[id(handle)] if other in shapes]
        stored = [(kind, other) for kind in kinds for other in names if ranges.holds(kind, other)]
        if stored:
            places[name] = stored[0]
            found = shapes[stored[0][1]]
            if found != shape:
                wrong.append(f"{name} has shape {found}, the model's is {shape}")
        elif 0 in shape:
            places[name] = (kinds[0], name)  # an empty tensor is not stored
        elif not only or any(other in only for other in names_of[id(handle)]):
            wrong.append(f"{name} is missing")
    _check_none(wrong, source)

    in_model = {name for names in names_of.values() for name in names}
    return places, [name for name in shapes if name not in in_model]


def _check_none(wrong: Sequence[str], source: Path) -> None:
    """Raise a CheckpointError about these differences between a model and its files, if any."""
    if wrong:
        raise CheckpointError(f"{source}: does not hold this model: {listed(wrong, 3)}")


def _frozen_differently(parts: Parts, places: Places) -> list[str]:
    """Return a line about the parameters that are trained in only one of the two runs, if any."""
    changed = []
    for name, _, _, handle in parts.strategy.named_tensors():
        if name in places and isinstance(handle, nn.Parameter):
            was_trained = places[name][0] == "parameter"
            if was_trained != handle.requires_grad and handle.numel():
                changed.append(f"{name} {was_trained} -> {handle.requires_grad}")
    return [f"trained: {listed(changed)}"] if changed else []


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
    """Read the moving averages that are stored. The others start with the weights."""
    for shard, average in parts.averages or ():
        if ranges.holds("average", shard.name):
            ranges.read("average", shard.name, shard.start, average)
        else:
            average.copy_(shard.tensor)
    if parts.averages is None or ranges.names("average"):
        return []
    return ["the checkpoint holds no moving average: it starts with the weights"]


def _restore_rng(parts: Parts, ranges: Ranges, step: int) -> list[str]:
    """Set the random number generators of this rank. Return notices."""
    layout = parts.layout
    before = len(ranges.names("rng.torch"))  # how many ranks drew numbers of their own
    if before == layout.world_size:
        rank = str(layout.rank)
        kinds = {name: f"rng.{name}" for name in rng.GENERATORS}
        rng.write(
            {n: ranges.whole(kind, rank) for n, kind in kinds.items() if ranges.holds(kind, rank)}
        )
        return []

    # The generators of so many ranks cannot be given to another number of ranks. New ones must not
    # repeat what was drawn before.
    set_seed(seed_of(int(parts.config["seed"]), step, layout.rank))
    return [
        f"{before} processes before, {layout.world_size} now: random numbers of the model "
        "(dropout) are drawn from new streams; the order of the data stays as it was"
    ]
