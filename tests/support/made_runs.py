"""Made-up runs to compare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trainer.commands.finished_runs import Run

PLAN = {"strategy": "ddp", "world_size": 2,
        "mixed_precision": "no", "precision": {"compute": "fp32"}, "global_batch_size": 64, "lr": 0.1, "device": "cpu",
        "task": "a:B", "seed": 0, "state_bytes_per_rank": 1600, "accumulation_steps": 1, "fsdp": {}, "deepspeed": {},
        "parameters": 100, "trainable_parameters": 100}  # fmt: skip


def made(
    name: str, *, speed: float = 100.0, memory: int = 1000, off: float = 0.0, **plan: object
) -> Run:
    rows: list[dict[str, Any]] = [
        {"step": step, "samples": 64 * step, "seconds": 0.1 * step, "loss": (2.0 - 0.1 * step) * (1 + off),
         "samples_per_second": speed if step > 1 else speed / 9}
        for step in range(1, 6)
    ]  # fmt: skip
    rows.append({"step": 5, "epoch": 1.0, "samples": 320, "eval/loss": 1.4})
    summary = {"peak_memory_bytes": [memory, memory - 1], "seconds": {"training": 0.5}}
    return Run(name=name, path=f"runs/{name}", plan=PLAN | plan, rows=rows, summary=summary)


def written(run: Run, folder: Path) -> Path:
    """The run as our trainer leaves it."""
    folder.mkdir()
    plan = {key: value for key, value in run.plan.items() if key not in ("task", "seed")}
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "config.yaml").write_text(f"task: {run.plan['task']}\nseed: {run.plan['seed']}\n")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in run.rows))
    (folder / "summary.json").write_text(json.dumps(run.summary))
    return folder


def odd_runs() -> list[Run]:
    """Two that agree, and six that are odd, each in its own way."""
    killed, silent, unmeasured, sparse = (
        made(name) for name in ("killed", "silent", "unmeasured", "sparse")
    )
    del unmeasured.rows[-1]
    sparse.rows[:] = [dict(row, step=row["step"] + 100) for row in sparse.rows]
    return [
        made("ddp", speed=200),
        made(
            "other_rate_and_a_name_that_is_longer_than_a_telephone_is_wide",
            lr=0.2,
            schedule_settings={"gamma": 0.5},
        ),
        made("zero3", strategy="zero3", speed=150),
        killed._replace(rows=killed.rows[:2], summary={}, plan=killed.plan | {"total_steps": 9}),
        silent._replace(rows=[], summary={}),
        unmeasured._replace(plan=unmeasured.plan | {"strategy": "fsdp"}),
        sparse,
    ]
