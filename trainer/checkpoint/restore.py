"""Loading a checkpoint, or the weights of a model folder, whatever layout wrote them.

Each rank reads the ranges that it owns, so no rank ever holds the whole model.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from accelerate.utils import set_seed
from torch import Tensor

from ..data import rng
from ..data.seeds import seed_of
from ..distributed.agreement import Agreement
from ..errors import CheckpointError, Origin
from ..position import COUNTERS
from ..strategies.tensors import canonical_state
from ..task import Pretrained, new_names
from ..text import hidden, listed
from .compatibility import differences
from .contents import WEIGHTS, Contents, decode
from .discover import opened, verify_together
from .disk import trusting_no_value
from .optimizer_state import schedule_state, state_of
from .parts import Parts
from .ranges import Ranges, of_pretrained
from .restore_optimizer import begin_state, restore_schedule, restore_settings
from .safetensors_io import Entry
from .snapshot import encode
from .store import MANIFEST, CheckpointInfo


def load(
    parts: Parts, info: CheckpointInfo, *, allow_change: bool
) -> tuple[Mapping[str, Any], list[str]]:
    """Set a training to the state that a verified checkpoint holds. Collective: call on every rank.

    Returns:
        The values of state.json, and notices.

    Raises:
        ConfigError: the configuration changes the numbers, and ``allow_change`` is not set.
        CheckpointError: the checkpoint holds another model, another sort of data, or a value that
            no run writes.
    """
    contents = opened(info)
    with trusting_no_value(info.path):
        state = decode(contents.state, partial(contents.ranges.whole, "user"))
        notices = _load_parts(parts, info.path, contents, state, allow_change=allow_change)
        vars(parts.position).update({name: state[name] for name in COUNTERS})
        parts.position.samples = parts.data.restore(state["data"])

    parts.task.load_state_dict(state["task"])
    for name, callback in parts.named_callbacks().items():
        if name in state["callbacks"]:
            callback.load_state_dict(state["callbacks"][name])
    with trusting_no_value(info.path):
        notices += _restore_rng(parts, contents.ranges)
    return state, notices


def _load_parts(
    parts: Parts, path: Path, contents: Contents, state: Mapping[str, Any], *, allow_change: bool
) -> list[str]:
    """Load tensors, optimizer and schedule, if the settings allow that. Return notices."""
    ranges = contents.ranges
    shapes = {
        name: shape
        for name, shape, _, handle in parts.strategy.named_tensors()
        if not parts.leaves_out(name, handle)
    }
    stored = {name: entry.shape for name, entry in contents.model.items()}
    # Also under the same names: the state of a shared parameter stands under its first name.
    odd = [f"{name} {shape}" for name, shape in sorted(stored.items() ^ shapes.items())]
    if odd:
        raise CheckpointError(
            f"{path}: does not hold this model: only one of the two has {listed(odd)}"
        )

    before = hidden(contents.state["mathematics"])  # an earlier version may hide fewer secrets
    now = encode(parts.mathematics, {}, "mathematics")
    changes = differences(
        _compared(before, ranges.names("parameter"), state["schedule"]),
        _compared(now, dict(parts.strategy.parameters()), schedule_state(parts.schedule)),
    )
    changes += parts.sampled.changes(state["content"])
    if changes and not allow_change:
        raise Origin("resume", key="allow_config_change").error(
            f"the checkpoint {path} belongs to a run with other numbers; restore these "
            "values, or set allow_config_change: true to continue with the new ones: "
            f"{'; '.join(changes)}"
        )
    notices = [f"changed since the checkpoint: {line}" for line in changes]

    places = {name: (kind, name) for name in shapes if (kind := contents.kind(name))}
    same_optimizer = before["optimizer"] == now["optimizer"]
    notices += _load_tensors(parts, ranges, places, with_optimizer=same_optimizer)
    if not same_optimizer:
        notices.append("the optimizer changed: its state starts fresh")
    if before["optimizer_groups"] == now["optimizer_groups"]:
        # A callback may have changed settings during the run.
        for group, saved in zip(
            parts.strategy.optimizer.param_groups, state["group_settings"], strict=False
        ):
            restore_settings(group, saved)
    parts.strategy.load_scaler_state(state["scaler"])
    assert state["schedule"]["steps"] <= state["step"], "a schedule moves at most once in a step"
    return notices + restore_schedule(parts.schedule, state["schedule"])


def _compared(
    mathematics: Mapping[str, Any], trained: Iterable[str], schedule: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings with those that code decides. The order of parameters makes no difference."""
    groups = [
        {**group, "names": sorted(group["names"])} for group in mathematics["optimizer_groups"]
    ]
    return {
        **mathematics,
        "optimizer_groups": groups,
        "trained": sorted(trained),
        "base_lrs": schedule["own"]["base_lrs"],
    }


def load_weights(parts: Parts, path: Path, agreement: Agreement) -> list[str]:
    """Read parameters and buffers from a checkpoint or a model folder. Return notices.

    A checkpoint with a moving average gives the average. Everything else of the training stays.
    Collective: call on every rank.

    Raises:
        CheckpointError: the folder does not hold this model, or is a damaged checkpoint.
    """
    # Beside the saved part of a model, the other tensors keep the values of build_model.
    part = parts.model_file.names or {}
    if os.path.lexists(path / MANIFEST):
        contents = opened(verify_together(path, agreement))
        return _load_found(parts, contents.ranges, contents.model, path, only=part)
    names = {name_in_file: name for name, name_in_file in part.items()}
    return load_pretrained(parts, [Pretrained(folder=path, names=names)], only=part)


def load_pretrained(
    parts: Parts, sources: Sequence[Pretrained], *, only: Collection[str] = ()
) -> list[str]:
    """Read parameters and buffers from files of a pretrained model. Return notices. Collective."""
    ranges, entries = of_pretrained(sources)
    folders = ", ".join(dict.fromkeys(str(source.folder) for source in sources))
    return _load_found(parts, ranges, entries, folders, only=only, without=new_names(sources))


def _load_found(
    parts: Parts,
    ranges: Ranges,
    entries: Mapping[str, Entry],
    source: object,
    *,
    only: Collection[str] = (),
    without: Collection[str] = (),
) -> list[str]:
    """Read the tensors of the model that files hold, also under other names of a shared tensor.

    Return notices.

    Args:
        only: the names that must be there. By default all.
        without: the names that are not looked for.
    """
    in_model = canonical_state(parts.strategy.model)
    names_of: dict[Tensor, list[str]] = {}
    for name, tensor in in_model.items():
        names_of.setdefault(tensor, []).append(name)

    places: dict[str, tuple[str, str]] = {}
    wrong = []
    for name, shape, _, handle in parts.strategy.named_tensors():
        if name in without:
            continue
        names = names_of[handle]
        stored = [
            (kind, other)
            for kind in ("average", *WEIGHTS)
            for other in names
            if other in entries and ranges.holds(kind, other)
        ]
        if stored:
            places[name] = stored[0]
            found = entries[stored[0][1]].shape
            if found != shape:
                wrong.append(f"{name} has shape {found}, the model's is {shape}")
        elif 0 not in shape and not {*(only or names)}.isdisjoint(names):
            wrong.append(f"{name} is missing")  # a tensor without elements is not stored
    if wrong:
        raise CheckpointError(f"{source}: does not hold this model: {listed(wrong)}")
    _load_tensors(parts, ranges, places)

    notices = [f"starts with the weights of {source}: {len(places)} tensors"]
    unused = [name for name in entries if name not in in_model]
    if unused:
        notices.append(f"{source} holds tensors that are not in the model: {listed(unused)}")
    return notices


def _load_tensors(
    parts: Parts,
    ranges: Ranges,
    places: Mapping[str, tuple[str, str]],
    *,
    with_optimizer: bool = False,
) -> list[str]:
    """Read parameters, buffers and the moving average. Return notices.

    With the optimizer's state, parameter by parameter, which is the order of the files: in
    another order a disk takes twice the time.

    Args:
        places: kind and name in the files, by the name in the model.
    """
    strategy, form = parts.strategy, parts.optimizer_form
    notices = begin_state(strategy, form, ranges) if with_optimizer else []
    for shard in chain(strategy.shards(), strategy.shards(trainable=False)):
        if shard.name in places:
            ranges.read(*places[shard.name], shard.start, shard.tensor)
        state = state_of(strategy.optimizer, shard, form) if with_optimizer else {}
        for kind, part in state.items():
            if part.dim() and ranges.holds(kind, shard.name):
                ranges.read(kind, shard.name, shard.start, part)
    strategy.write_back()

    for name, buffer in strategy.buffers():
        if name in places:
            buffer.copy_(ranges.whole(*places[name]).view_as(buffer))

    for shard, average in parts.average.pairs:
        if ranges.holds("average", shard.name):
            ranges.read("average", shard.name, shard.start, average)
        else:
            average.copy_(shard.tensor)
    if parts.average.pairs and not ranges.names("average"):
        notices.append("the checkpoint holds no moving average, which starts with the weights")
    return notices


def _restore_rng(parts: Parts, ranges: Ranges) -> list[str]:
    """Set the random number generators of this rank. Return notices."""
    if parts.strategy.sums_exactly:  # random numbers belong to micro-batches
        return []
    before = len(ranges.names("rng.torch"))  # the number of ranks that wrote the checkpoint
    if before == parts.world_size:
        rank = str(parts.rank)
        rng.write(
            {
                name: ranges.whole(f"rng.{name}", rank)
                for name in rng.read()
                if ranges.holds(f"rng.{name}", rank)
            }
        )
        return []

    # Another number of ranks cannot take over the generators. The new generators must not repeat
    # the numbers that were drawn before.
    set_seed(seed_of(parts.config.seed, parts.step, parts.rank))
    return [
        f"{before} processes before, {parts.world_size} now: random numbers of the model "
        "(dropout) are drawn from new streams; the order of the data stays as it was"
    ]
