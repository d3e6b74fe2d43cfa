"""Fixtures of several test files."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    """Trainings in this process: the Accelerator of one test does not reach the next."""
    kept = dict(os.environ)
    yield
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()
    os.environ.clear()
    os.environ.update(kept)
