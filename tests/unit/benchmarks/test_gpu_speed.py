"""The GPU benchmark measures loops that differ in nothing but the loop: graphs, losses, counting."""

from __future__ import annotations

import contextlib
import io

import pytest

from benchmarks.gpu_speed import (
    Clock,
    Llama,
    by_hand,
    ours,
)

# dynamo looks at .grad of whatever it traces
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
TASK = Llama(name="tiny")


def test_the_loop_by_hand_and_samecurve_have_the_same_losses() -> None:
    hand, own = Clock(warm=1, timed=7), Clock(warm=1, timed=7)  # ten steps: into the second epoch
    by_hand(TASK, False, hand)
    with contextlib.redirect_stdout(io.StringIO()):
        ours(TASK, False, own)
    assert len(hand.losses) == 10
    values = [float(loss) for loss in own.losses]
    assert values[0] == float(hand.losses[0]), "same weights, same rows"
    assert values == pytest.approx([float(loss) for loss in hand.losses], rel=1e-3)  # bf16


def test_operations_are_those_of_the_matrices_and_half_of_the_pairs() -> None:
    # A layer: four matrices of 64 x 64 and three of 64 x 128; the head: 256 x 64; 64 tokens.
    matrices = 2 * (4 * 64 * 64 + 3 * 64 * 128) + 256 * 64
    pairs = 2 * 2 * (32 * 33 // 2)  # rows, layers, a triangle (the diagonal counts half of it)
    assert TASK.operations() == pytest.approx(6 * 64 * matrices + 12 * 64 * pairs, rel=0.01)
