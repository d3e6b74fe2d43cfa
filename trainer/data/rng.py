"""The global random number generators of a process: Python's, numpy's, torch's and the GPU's.

Checkpoints hold their states as tensors (``read``, ``write``). ``temporarily_seeded`` makes a block
of code draw the same numbers in every process.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .seeds import seed_of


def read() -> dict[str, Tensor]:
    """Return the state of each generator, in a form that does not depend on the platform."""
    _, words, normal = random.getstate()
    if normal is None:
        normal = math.nan  # Python draws normal numbers in pairs: no second number is waiting

    numpy_state: Any = np.random.get_state()
    _, keys, position, has_normal, cached = numpy_state

    states = {
        "python": torch.tensor(words),
        "python.normal": torch.tensor([normal], dtype=torch.float64),
        "numpy": torch.tensor([*keys.tolist(), position, has_normal]),
        "numpy.normal": torch.tensor([cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def write(state: dict[str, Tensor]) -> None:
    """Set the generators to states that ``read`` has returned."""
    words = tuple(state["python"].tolist())
    normal = float(state["python.normal"])
    random.setstate((3, words, None if math.isnan(normal) else normal))

    *keys, position, has_normal = state["numpy"].tolist()
    cached = float(state["numpy.normal"])
    np.random.set_state(("MT19937", np.array(keys, np.uint32), position, has_normal, cached))

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
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    torch_state = torch.get_rng_state()
    seed_global_generators(*entropy)
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
