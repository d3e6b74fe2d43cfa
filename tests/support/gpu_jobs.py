"""Jobs of tests/gpu: several trainings in each, and all at the same time."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

from launchers import connection, installed, json_in, launch_file, ranks

ENGINE = ["zero1", "zero2", "zero3"] if installed("deepspeed") else []
STRATEGIES = ["replicas", "fsdp", *ENGINE]
Results = Mapping[str, dict[str, Any]]


@cache
def job_pool() -> ThreadPoolExecutor:
    """Return threads for the jobs: most of a job is its set-up, on a processor of its own."""
    connection()  # before the threads ask for it
    return ThreadPoolExecutor(min(8, os.cpu_count() or 1))


def launch_files(folder: Path, how: str, world: int) -> dict[str, str]:
    """Return the committed file for as many processes. Replicas in one process have none."""
    if how == "replicas" and world == 1:
        return {}
    path = folder / f"{how}.yaml"
    launch_file(path, {"replicas": "ddp", "fsdp_offload": "fsdp"}.get(how, how), world)
    if how == "fsdp_offload":
        path.write_text(
            path.read_text().replace(
                "fsdp_config:\n", "fsdp_config:\n  fsdp_offload_params: true\n"
            )
        )
    return {"accel_config": str(path)}


def start(
    own: Path,
    cases: list[list[str]],
    world: int,
    files: dict[str, str],
    environment: Mapping[str, str] | None = None,
) -> Results:
    """Run the cases of a job, and return the result of each."""
    asked = json.dumps({"file": files, "folder": str(own), "cases": cases})
    alone = world <= 1 and not files
    done = ranks(
        ["tests/workers/gpu_cases.py", asked],
        0 if alone else world,
        timeout=400,
        environment=environment,
    )
    left = {path.stem: json_in(path) for path in own.glob("*.json")}
    if done.returncode:
        left["ended"] = {
            "error": f"exit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
        }
    return left


def result(results: Results, name: str) -> dict[str, Any]:
    """Return the result of a case.

    Raises:
        AssertionError: the case failed, or its job ended before.
    """
    told = results.get(name) or results.get("ended") or {"error": "nothing was left"}
    assert "error" not in told, f"{name}: {told['error']}"
    return told
