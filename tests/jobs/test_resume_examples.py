"""The examples go on from a checkpoint of any layout under any other, in the middle of an epoch."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
from launchers import Job, command, launch_file, run

STEPS, BROKEN_AT = 10, 5
COMMON = [
    "--max_steps",
    str(STEPS),
    "--log_every",
    "1",
    "--warmup_steps",
    "2",
    "--micro_batch_size",
    "2",
]

COMMON += ["--global_batch_size", "12", "--save_every", str(BROKEN_AT)]

TASKS = {
    "cnn": ["--config", "examples/configs/digits_cnn.yaml", *COMMON],
    "llama": [
        "--config",
        "examples/configs/llama_stdlib.yaml",
        "--task_settings.max_bytes",
        "300000",
        *COMMON,
    ],
}
LAYOUTS = (("single", 1), ("ddp", 2), ("fsdp", 3), ("zero1", 2), ("zero2", 3), ("zero3", 2))
QUICK = {("cnn", "fsdp", "single")}
CASES = [
    pytest.param(
        task, before, after, marks=() if (task, before[0], after[0]) in QUICK else pytest.mark.slow
    )
    for task in TASKS
    for before in LAYOUTS
    for after in LAYOUTS
]


def train(task: str, layout: tuple[str, int], output_dir: Path, *more: str) -> Job:
    strategy, world = layout
    if strategy == "single":
        words = command("ranks", strategy, world=0)
    else:
        yaml = launch_file(output_dir.with_suffix(".yaml"), strategy, world)
        words = command("ranks", str(yaml), world=world)
    job = run([*words, *TASKS[task], *more], output_dir).ok()
    assert (job.plan["strategy"], job.plan["world_size"], job.plan["global_batch_size"]) == (
        strategy,
        world,
        12,
    )
    return job


@cache
def unbroken(task: str, layout: tuple[str, int], folder: Path) -> Job:
    return train(task, layout, folder / f"{task}-{layout[0]}")


@pytest.mark.parametrize(("task", "before", "after"), CASES)
def test_the_curve_goes_on(
    task: str, before: tuple[str, int], after: tuple[str, int], folder: Path
) -> None:
    whole = unbroken(task, before, folder)
    checkpoint = whole.output_dir / "checkpoints" / f"step-{BROKEN_AT:08d}"
    gone_on = train(
        task, after, folder / f"{task}-{before[0]}-{after[0]}", "--resume", str(checkpoint)
    )
    steps = [row["step"] for row in gone_on.rows if "loss" in row]
    assert steps == list(range(BROKEN_AT + 1, STEPS + 1))
    if before == after:
        assert gone_on.losses == whole.losses[BROKEN_AT:]
        assert (gone_on.output_dir / "model" / "model.safetensors").read_bytes() == (
            whole.output_dir / "model" / "model.safetensors"
        ).read_bytes()
    # The first loss needs a forward pass alone; later ones differ as the curves of two layouts do.
    assert gone_on.losses[0] == pytest.approx(whole.losses[BROKEN_AT], rel=2e-6)
    assert gone_on.losses == pytest.approx(whole.losses[BROKEN_AT:], rel=1e-4)
    assert gone_on.evaluation["eval/loss"] == pytest.approx(whole.evaluation["eval/loss"], rel=1e-4)
