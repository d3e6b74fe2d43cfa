"""Weights to start from: a model folder, of ours or of the Hugging Face hub, or a checkpoint.

Each rank reads the ranges that it owns, so no rank ever holds the whole model.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..errors import CheckpointError
from ..strategies.tensors import canonical_state
from .ranges import Ranges, of_model_folder, of_rank_files
from .resume import verify_together
from .store import MANIFEST, look

if TYPE_CHECKING:
    from ..train_state import TrainState


def load_weights(run: TrainState, path: Path) -> str:
    """Set parameters and buffers; everything else stays as it is. Every rank enters; returns a notice.

    Raises:
        CheckpointError: the folder does not hold this model, or is a damaged checkpoint.
    """
    store, kinds = _opened(run, path)
    places = _places(run, store, kinds, path)
    strategy = run.strategy
    for shard in (*strategy.shards(), *strategy.frozen_shards()):
        kind, name = places[shard.name]
        store.read(kind, name, shard.start, shard.tensor)
    strategy.write_back()
    for name, buffer in strategy.buffers():
        flat = torch.empty_like(buffer).reshape(-1)
        store.read(*places[name], 0, flat)
        buffer.copy_(flat.view_as(buffer))
    for shard, average in run.average.parts():
        average.copy_(shard.tensor)
    return f"starts with the weights of {path}"


def _opened(run: TrainState, path: Path) -> tuple[Ranges, tuple[str, ...]]:
    """The store, and the kinds in which it may hold a tensor, the one to prefer first."""
    if not (path / MANIFEST).exists():
        return of_model_folder(path), ("parameter",)
    found = verify_together(look(path), run.control)
    if found.problem:
        raise CheckpointError(f"{path}: {found.problem}")
    files = (path / name for name in found.files if name.endswith(".safetensors"))
    return of_rank_files(files), ("average", "parameter", "frozen", "buffer")


def _places(run: TrainState, store: Ranges, kinds: tuple[str, ...], path: Path) -> dict[str, tuple[str, str]]:
    """Where each tensor of the model lies; a shared one may stand under any of its names."""
    known: dict[int, list[str]] = {}
    for name, tensor in canonical_state(run.model):
        known.setdefault(id(tensor), []).append(name)
    places, wrong = {}, []
    for name, shape, _, handle in run.strategy.named_tensors():
        found = [(kind, other) for kind in kinds for other in known[id(handle)] if store.holds(kind, other)]
        if not found:
            wrong.append(f"{name} is missing")
        elif (numel := store.numel(*found[0])) != math.prod(shape):
            wrong.append(f"{name} has {numel} elements, the model's {math.prod(shape)}")
        else:
            places[name] = found[0]
    if wrong:
        more = f" (and {len(wrong) - 3} more)" if len(wrong) > 3 else ""
        raise CheckpointError(f"{path}: does not hold this model: {'; '.join(wrong[:3])}{more}")
    return places
