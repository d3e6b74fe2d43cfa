"""Learning-rate schedules: what a config may say about them, and the banner shows."""

from __future__ import annotations

from plans import plan

from trainer.reporting.banner import plan_rows


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


def test_the_banner_shows_how_the_rate_came_about() -> None:
    made = plan(
        lr=0.1, lr_scaling="linear", reference_batch_size=4, warmup_samples=100, schedule="cosine"
    )
    row = dict(plan_rows(made.as_dict()))["optimizer"]
    batch = made.global_batch_size
    assert row == (
        f"adamw, lr 0.1 at batch 4 -> {0.1 * batch / 4:g} at batch {batch} (linear), cosine, "
        f"{-(-100 // batch)} warm-up steps"
    )
    before = dict(plan_rows(plan(warmup_fraction=0.1, epochs=3).as_dict()))["optimizer"]
    assert before.endswith("constant, warm-up in 0.1 of the run")
