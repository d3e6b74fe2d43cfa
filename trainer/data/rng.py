"""The random number generators of a process as tensors: Python's, numpy's, torch's and those of its
GPU.
"""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

GENERATORS = ("python", "python.normal", "numpy", "numpy.normal", "torch", "cuda")


def read() -> dict[str, Tensor]:
    """Return the states by generator; they load on any platform that has the generators."""
    version, words, normal = random.getstate()
    assert version == 3, "since Python 3.2"
    mersenne: Any = np.random.get_state()
    algorithm, keys, position, has_normal, cached = mersenne
    assert algorithm == "MT19937", "numpy's global generator"
    found = {
        "python": torch.tensor(words),
        "python.normal": torch.tensor(
            [math.nan if normal is None else normal], dtype=torch.float64
        ),
        "numpy": torch.tensor([*keys.tolist(), position, has_normal]),
        "numpy.normal": torch.tensor([cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state()
    return found


def write(state: dict[str, Tensor]) -> None:
    """Set what ``read`` gave."""
    normal = float(state["python.normal"])
    random.setstate((3, tuple(state["python"].tolist()), None if math.isnan(normal) else normal))
    *keys, position, has_normal = state["numpy"].tolist()
    assert len(keys) == 624, "words of the Mersenne Twister"
    np.random.set_state(
        ("MT19937", np.array(keys, np.uint32), position, has_normal, float(state["numpy.normal"]))
    )
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
