"""Load an exported model into a freshly built one, strictly."""

from __future__ import annotations

from pathlib import Path

from safetensors import SafetensorError
from torch import nn

from ..errors import CheckpointError
from ..strategies.tensors import canonical_state
from ..text import listed
from .export import MODEL_FILE


def load_export(model: nn.Module, directory: str | Path) -> None:
    """Load an exported model into a freshly built one, strictly.

    Raises:
        CheckpointError: names or shapes differ.
    """
    from safetensors.torch import load_file

    try:
        stored = load_file(Path(directory) / MODEL_FILE)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{directory}: holds no model: {error}") from None

    own = list(canonical_state(model))  # a shared tensor comes under all its names
    used: set[str | int] = set()
    for name, tensor in own:
        if name in stored and stored[name].shape == tensor.shape:
            tensor.detach().copy_(stored[name])
            used.update((name, id(tensor)))
    names = {*stored, *(name for name, tensor in own if id(tensor) not in used)} - used
    if names:
        raise CheckpointError(f"{directory}: does not hold this model: {listed(sorted(names))}")
