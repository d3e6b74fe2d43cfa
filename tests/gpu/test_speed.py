"""Speed beside a loop by hand and transformers.Trainer, and memory beside the rehearsal's."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import json_in, ranks

REHEARSAL = os.environ.get("DEVICE") == "cpu"
MODELS = ["tiny"] if REHEARSAL else ["124M", "1B"]


@cache
def measured(folder: Path, world: int) -> Mapping[str, Any]:
    out = folder / "speed.json"
    compiled = ["--not_compiled"] if REHEARSAL else []
    words = ["benchmarks/gpu_speed.py", *MODELS, "--json", str(out), *compiled]
    done = ranks(words, 0 if world == 1 else world, timeout=500)
    assert done.returncode == 0, done.stdout + done.stderr[-6000:]
    return dict(json_in(out))


@pytest.mark.parametrize("model", MODELS)
def test_a_step_costs_what_a_loop_by_hand_costs(
    model: str, folder: Path, gpus: int, note: Callable[..., None]
) -> None:
    found = measured(folder, gpus)[model]
    note(**found)
    if "error" not in found and not REHEARSAL:
        assert found["samecurve"]["seconds_per_step"] <= 1.05 * found["by hand"]["seconds_per_step"]
        assert found["samecurve"]["peak_bytes"] <= 1.01 * found["rehearsed_bytes"]
