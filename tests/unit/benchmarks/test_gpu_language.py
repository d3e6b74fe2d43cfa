"""Packed documents of the GPU benchmarks: each alone, the same numbers by hand and by samecurve."""

from __future__ import annotations

import contextlib
import io

import pytest

from benchmarks.gpu_language import TASKS
from benchmarks.gpu_speed import Clock, by_hand, forget, ours

pytestmark = [
    pytest.mark.usefixtures("fresh_accelerate"),
    # dynamo looks at .grad of whatever it traces
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
]


def losses(loop: str) -> list[float]:
    clock = Clock(warm=1, timed=2)
    with contextlib.redirect_stdout(io.StringIO()):
        (by_hand if loop == "lm-hand" else ours)(TASKS[loop]("tiny"), False, clock)
    forget()
    return [float(loss) for loss in clock.losses]


def test_packed_rows_have_the_same_losses_by_hand_and_beside_a_mask() -> None:
    hand = losses("lm-hand")
    assert len(hand) == 5
    for loop in ("lm", "lm-mask"):
        assert losses(loop) == pytest.approx(hand, rel=1e-3), loop  # bf16
