"""Optimizers by their class under every strategy: the curve of one process, or one line before the
first step.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import STRATEGIES, ranks

STEPS = 20
OWN = {"max_steps": STEPS, "lr": 3e-3, "save_every": 10}
CASES: dict[str, dict[str, Any]] = {
    "adamw": {
        "optimizer": "torch.optim.AdamW",
        "optimizer_settings": {"amsgrad": True, "eps": 1e-4},
    },
    "rmsprop": {
        "optimizer": "torch.optim:RMSprop",
        "optimizer_settings": {"momentum": 0.9, "eps": 1e-2},
    },
    "lion": {
        "optimizer": "own_optimizers:Lion",
        "optimizer_settings": {"betas": [0.9, 0.98]},
        "lr": 1e-3,
    },
    "adagrad": {
        "optimizer": "torch.optim.Adagrad",
        "optimizer_settings": {"initial_accumulator_value": 0.1},
        "lr": 1e-2,
    },
    "muon": {
        "optimizer": "torch.optim.Muon",
        "optimizer_settings": {"adamw": {"eps": 1e-4, "lr": 1e-3}},
    },
    "adafactor": {"optimizer": "torch.optim.Adafactor", "keep_last": 0, "save_every": None},
    "lamb": {"optimizer": "own_optimizers.Lamb", "optimizer_settings": {"trust": 0.5}},
}
BY_ELEMENT = ("adamw", "rmsprop", "lion", "adagrad")  # the others look at whole parameters
# What runs: FSDP2's tensors know that they are parts, so LAMB's norms are those of whole
# parameters.
RUNS = {"ddp": tuple(CASES), "fsdp": (*BY_ELEMENT, "lamb")}
SAVED = [name for name, settings in CASES.items() if "keep_last" not in settings]


@cache
def results(strategy: str, folder: Path) -> dict[str, dict[str, Any]]:
    cases = {name: {**OWN, **settings} for name, settings in CASES.items()}
    if strategy != "single":
        results("single", folder)
        for name in SAVED:
            checkpoint = str(folder / "single" / name / "checkpoints" / "step-00000010")
            cases[f"{name}_resumed"] = {**cases[name], "resume": checkpoint}
    words = [
        "tests/workers/optimized.py",
        f"accel_configs/{strategy}.yaml",
        folder / strategy,
        json.dumps(cases),
    ]
    done = ranks(words, 0 if strategy == "single" else 2)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-6000:]
    return {name: json.loads((folder / strategy / f"{name}.json").read_text()) for name in cases}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_classes_have_the_curve_of_one_process_or_are_refused_before_training(
    strategy: str, folder: Path
) -> None:
    alone, found = results("single", folder), results(strategy, folder)
    for name in CASES:
        if name in RUNS.get(strategy, BY_ELEMENT):
            assert found[name]["losses"] == pytest.approx(alone[name]["losses"], rel=1e-5), name
            assert (
                len(alone[name]["losses"]) == STEPS
                and alone[name]["losses"][-1] < alone[name]["losses"][0]
            ), name
        else:
            [line] = found[name]["error"].splitlines()
            assert line.startswith(
                f"TrainConfig: optimizer: {CASES[name]['optimizer']!r}: each process holds "
            )
            assert line.endswith(
                "run it on replicas (DDP) or in one process, or take another optimizer"
            )
            assert not (folder / strategy / name / "metrics.jsonl").exists()
    for name in SAVED:
        if "losses" in found[name]:
            assert found[f"{name}_resumed"]["losses"] == pytest.approx(
                alone[name]["losses"][10:], rel=1e-5
            ), name
