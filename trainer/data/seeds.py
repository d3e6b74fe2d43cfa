"""Seeds and generators that follow from a tuple of numbers, the same in every process."""

from __future__ import annotations

import numpy as np
import torch


def seed_of(*entropy: int) -> int:
    """Return a seed below 2**32, the limit of numpy, for a tuple of non-negative numbers."""
    [seed] = np.random.SeedSequence(entropy).generate_state(1)
    return int(seed)


def generator_of(*entropy: int) -> torch.Generator:
    """Return a CPU generator that is seeded from a tuple of non-negative numbers."""
    [seed] = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(seed))
