"""Seeds and generators that follow from a tuple of numbers: the same in every process, whatever was
drawn before.
"""

from __future__ import annotations

import numpy as np
import torch


def seed_of(*entropy: int) -> int:
    """Return a seed below 2**32, which numpy takes, for a tuple of non-negative numbers."""
    return int(np.random.SeedSequence(entropy).generate_state(1)[0])


def generator_of(*entropy: int) -> torch.Generator:
    """Make a CPU generator for a tuple of non-negative numbers."""
    [word] = np.random.SeedSequence(entropy).generate_state(1, np.uint64)
    return torch.Generator().manual_seed(int(word))
