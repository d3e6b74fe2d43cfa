"""The global random number generators of a process: Python's, numpy's, torch's and the GPU's.

Checkpoints hold their states as tensors (``read``, ``write``). ``temporarily_seeded`` makes a block
of code draw the same numbers in every process.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .seeds import seed_of


def read(*, with_gpu: bool = True) -> dict[str, Tensor]:
    """Return the state of each generator, Python's and numpy's as JSON."""
    numpy_state: Any = np.random.get_state()
    kind, keys, *others = numpy_state
    states = {
        "python": _as_tensor(random.getstate()),
        "numpy": _as_tensor([kind, keys.tolist(), *others]),
        "torch": torch.get_rng_state(),
    }
    if with_gpu and torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def _as_tensor(state: Any) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(state).encode()), dtype=torch.uint8)


def write(state: dict[str, Tensor]) -> None:
    """Set the generators to states that ``read`` has returned."""
    version, words, normal = json.loads(bytes(state["python"].numpy()))
    random.setstate((version, tuple(words), normal))
    np.random.set_state(tuple(json.loads(bytes(state["numpy"].numpy()))))
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])


def seed_global_generators(*entropy: int) -> None:
    """Seed Python's, numpy's and torch's CPU generator from a tuple of non-negative numbers."""
    seed = seed_of(*entropy)
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)


@contextmanager
def temporarily_seeded(*entropy: int) -> Iterator[None]:
    """Seed the global CPU generators for a block of code, and restore their states afterwards."""
    states = read(with_gpu=False)  # a loading process has no GPU
    seed_global_generators(*entropy)
    try:
        yield
    finally:
        write(states)
