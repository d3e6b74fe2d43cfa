"""Weights to start from: a model folder, of ours or of the Hugging Face hub, or a checkpoint.

Each rank reads the ranges that it owns, so no rank ever holds the whole model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..errors import CheckpointError
from ..strategies.tensors import canonical_state
from .adapters import ADAPTER_FILE
from .contents import WEIGHTS
from .discover import MANIFEST, look
from .ranges import Ranges, of_model_folder
from .resume import verify_together

if TYPE_CHECKING:
    from ..state import TrainState


def load_weights(run: TrainState, path: Path) -> list[str]:
    """Set parameters and buffers; everything else stays as it is. Collective; returns notices.

    Raises:
        CheckpointError: the folder does not hold this model, or is a damaged checkpoint.
    """
    # A folder with the adapter of a peft model leaves the model below it as build_model has made it.
    adapter = run.model_file.names if os.path.lexists(path / ADAPTER_FILE) else None
    store, kinds, shapes = _opened(run, path, adapter or {})
    places, unused = _places(run, store, kinds, shapes, path, only=adapter)
    strategy = run.strategy
    for shard in (*strategy.shards(), *strategy.frozen_shards()):
        if shard.name in places:
            kind, name = places[shard.name]
            store.read(kind, name, shard.start, shard.tensor)
    strategy.write_back()
    for name, buffer in strategy.buffers():
        if name not in places:
            continue
        flat = torch.empty_like(buffer).reshape(-1)
        store.read(*places[name], 0, flat)
        buffer.copy_(flat.view_as(buffer))
    for shard, average in run.average.parts():
        average.copy_(shard.tensor)
    notices = [f"starts with the weights of {path}"]
    if unused:
        more = ", ..." if len(unused) > 3 else ""
        notices.append(f"{len(unused)} tensors of {path} are not in the model: {', '.join(unused[:3])}{more}")
    return notices


def _opened(
    run: TrainState, path: Path, adapter: Mapping[str, str]
) -> tuple[Ranges, tuple[str, ...], dict[str, tuple[int, ...]]]:
    """The store, the kinds in which it may hold a tensor (the one to prefer first), and the shapes of its tensors."""
    if not os.path.lexists(path / MANIFEST):
        store, shapes = of_model_folder(path, {written: name for name, written in adapter.items()})
        return store, ("parameter",), shapes
    found = verify_together(look(path), run.control)
    if found.problem:
        raise CheckpointError(f"{path}: {found.problem}")
    contents = found.open()
    return contents.ranges, ("average", *WEIGHTS), {name: shape for name, shape, _ in contents.model}


def _places(
    run: TrainState,
    store: Ranges,
    kinds: tuple[str, ...],
    shapes: Mapping[str, tuple[int, ...]],
    path: Path,
    *,
    only: Mapping[str, str] | None,
) -> tuple[dict[str, tuple[str, str]], list[str]]:
    """Where each tensor of the model lies (a shared one may stand under any of its names), and what else is there."""
    known: dict[int, list[str]] = {}
    for name, tensor in canonical_state(run.model):
        known.setdefault(id(tensor), []).append(name)
    places, wrong = {}, []
    for name, shape, _, handle in run.strategy.named_tensors():
        names = [other for other in known[id(handle)] if other in shapes]
        stored = [(kind, other) for kind in kinds for other in names if store.holds(kind, other)]
        if not stored and 0 in shape:
            places[name] = kinds[0], name  # nothing is read of it
        elif not stored and only is not None and not any(other in only for other in known[id(handle)]):
            continue
        elif not stored:
            wrong.append(f"{name} is missing")
        elif (theirs := shapes[stored[0][1]]) != shape:
            hint = " (is it transposed?)" if theirs == shape[::-1] else ""
            wrong.append(f"{name} has shape {theirs}, the model's is {shape}{hint}")
        else:
            places[name] = stored[0]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise CheckpointError(f"{path}: does not hold this model: {'; '.join(wrong[:3])}{more}")
    ours = {name for names in known.values() for name in names}
    return places, [name for name in shapes if name not in ours]
