"""The global random number generators: states that can be stored, and seeds for a while."""

from __future__ import annotations

import random

import numpy as np
import torch

from trainer.data import rng


def draws() -> list[float]:
    """Draw from every global generator, also normal numbers, of which two are made at once."""
    return [
        random.random(),
        random.gauss(),
        np.random.random(),
        np.random.normal(),
        float(torch.rand(())),
    ]


def test_states_that_were_read_and_written_draw_the_same_numbers_again() -> None:
    for skipped in range(2):  # with and without a second normal number that waits
        rng.seed_global_generators(7)
        if skipped:
            draws()
        states = rng.read()
        expected = [draws(), draws()]

        rng.seed_global_generators(8)
        assert draws() != expected[0]
        rng.write({name: state.clone() for name, state in states.items()})
        assert [draws(), draws()] == expected


def test_states_are_tensors_by_name_of_the_generator() -> None:
    states = rng.read()
    names = {"python", "python.normal", "numpy", "numpy.normal", "torch", "cuda"}
    assert set(states) <= names, "checkpoints hold them"
    assert all(isinstance(state, torch.Tensor) for state in states.values())
