"""Learning-rate schedules: what a config may say about them, and the banner shows."""

from __future__ import annotations

from plans import plan


def test_warm_up_in_steps_samples_or_a_fraction() -> None:
    batch = plan().global_batch_size
    assert plan(warmup_samples=5 * batch).warmup_steps == 5
    assert plan(warmup_samples=5 * batch + 1).warmup_steps == 6
    made = plan(warmup_fraction=0.25)
    assert (
        made.with_length(20).warmup_steps,
        plan(warmup_steps=7).with_length(20).warmup_steps,
    ) == (5, 7)
    assert plan(warmup_samples=9 * batch).with_length(8).warmup_steps == 9, (
        "a run may end within it"
    )
