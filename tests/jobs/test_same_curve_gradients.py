"""The gradient of a step is that of the mean over its global batch, and keeps its digits.

| promised | strategies and worlds | tests |
|---|---|---|
| Gradient, loss, norm and clipping are autograd's in float64, of one process | DDP, FSDP2, ZeRO-1, ZeRO-3 on 2; all on 1 to 4 (nightly) | test_the_step_follows_the_global_mean |
| So they are under fp16 and its scaling | DDP on 2; DDP, FSDP2 on 1 to 4 (nightly) | test_the_same_under_fp16_scaling |
| Tensors have the dtypes that the plan names | all on 2, accumulating 1 and 16 | test_the_dtypes_of_the_plan_are_those_of_the_tensors |
| Gradients add up in float32 under bf16 | all on 2 | test_accumulated_gradients_keep_the_digits_of_a_single_one |
| Training starts from weights in full precision | all on 2 | test_training_starts_from_the_weights_as_they_were_built |

Measured on 2026-11-21 (two x86 CPU cores, torch 2.13, gloo), the largest errors relative to the
norm: 2e-7 of the gradient, 1e-7 of the loss and of the norm in float32; 8e-4, 3e-5, 3e-4 in half
precision.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import STRATEGIES, json_in, launch_file, worked

# The global mean


# Sums of some hundred float32 terms, each rounded to 6e-8 of itself, in an order that differs from
# layout to layout.
FLOAT32 = 1e-6


# A handful of layers in half precision, each rounded to 5e-4 of itself.
HALF = 2e-3

CASES = 11  # for each precision and accumulation
EVERY = [
    ("single", 1),
    *((s, world) for s in STRATEGIES for world in (1, 2, 3, 4) if (s, world) != ("ddp", 1)),
]
HALVES = [
    layout for layout in EVERY if not layout[0].startswith("zero")
]  # DeepSpeed has no fp16 on a CPU
# Strategies differ in what they do between the micro-batches of a step.
WORLD_TWO = [("ddp", 2, "4"), ("fsdp", 2, "4"), ("zero1", 2, "4"), ("zero3", 2, "4")]
WHOLE = [pytest.param(*layout, "1,2,4", marks=pytest.mark.slow) for layout in EVERY]
WHOLE_HALF = [pytest.param(*layout, "1,2,4", marks=pytest.mark.slow) for layout in HALVES]

Table = dict[str, dict[str, float]]


@cache
def errors(strategy: str, world: int, accumulations: str, precision: str, folder: Path) -> Table:
    """The worker's table of one layout: the errors of each case."""
    place = folder / f"{strategy}-{world}-{accumulations}-{precision}"
    place.mkdir()
    config = launch_file(place / "accel.yaml", strategy, world, precision)
    worked(["tests/workers/gradients.py", config, place, accumulations], world)
    return json_in(place / "errors.json")


def beyond(table: Table, bound: float) -> Table:
    """The cases with an error that is not within the bound (NaN is not)."""
    return {
        case: e
        for case, e in table.items()
        if not all(e[key] <= bound for key in ("gradient", "loss", "norm"))
    }


@pytest.mark.parametrize(("strategy", "world", "accumulations"), [*WORLD_TWO, *WHOLE])
def test_the_step_follows_the_global_mean(
    strategy: str, world: int, accumulations: str, folder: Path
) -> None:
    """Also the logged loss, the logged norm (the one before clipping) and the length of a clipped
    step.
    """
    table = errors(strategy, world, accumulations, "no", folder)
    assert len(table) == CASES * len(accumulations.split(","))
    assert beyond(table, FLOAT32) == {}
    assert all(e["clipped to"] < 0.1 for case, e in table.items() if "clipped" in case), (
        "there is something to clip"
    )


@pytest.mark.parametrize(("strategy", "world", "accumulations"), [("ddp", 2, "2"), *WHOLE_HALF])
def test_the_same_under_fp16_scaling(
    strategy: str, world: int, accumulations: str, folder: Path
) -> None:
    table = errors(strategy, world, accumulations, "fp16", folder)
    assert len(table) == CASES * len(accumulations.split(","))
    assert beyond(table, HALF) == {}
    assert min(e["gradient"] for e in table.values()) > FLOAT32, "this is half precision"


# Dtypes


ENGINES = {
    "zero": ("zero1", "zero2", "zero3"),
    "others": ("ddp", "fsdp"),
}  # those that one process can run in turn
BFLOAT16 = 2.0**-8  # what one rounding to eight binary digits costs, as of the mean over the ranks


def everything(strategy: str, precision: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """What each rank saw, by strategy and accumulation."""
    return of_engine("zero" if strategy.startswith("zero") else "others", precision, folder)


@cache
def of_engine(engine: str, precision: str, folder: Path) -> dict[str, list[dict[str, Any]]]:
    place = folder / f"{engine}-{precision}"
    place.mkdir()
    files = [
        launch_file(place / f"{strategy}.yaml", strategy, 2, precision)
        for strategy in ENGINES[engine]
    ]
    worked(["tests/workers/precision.py", place, *files])
    return json_in(place / "found.json")


@pytest.mark.parametrize("precision", ["bf16", pytest.param("no", marks=pytest.mark.slow)])
@pytest.mark.parametrize("steps", [1, 16])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_the_dtypes_of_the_plan_are_those_of_the_tensors(
    strategy: str, steps: int, precision: str, folder: Path
) -> None:
    for found in everything(strategy, precision, folder)[f"{strategy} {steps}"]:
        promised = {key: [dtype] for key, dtype in found["promised"].items()}
        if strategy == "ddp":  # its reducer sends the gradients that were seen
            promised["reduction"] = []
        assert {key: found[key] for key in promised} == promised
        assert found["promised"]["gradients"] == (
            "bf16" if strategy in ENGINES["zero"] and (steps, precision) == (1, "bf16") else "fp32"
        )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_accumulated_gradients_keep_the_digits_of_a_single_one(strategy: str, folder: Path) -> None:
    """Of 256 and fifteen times 1 a sum in bfloat16 is 256: an error of 5 %."""
    found = everything(strategy, "bf16", folder)
    for steps in ("1", "16", "16 each"):  # the last with sync_each_batch
        assert max(of_rank["error"] for of_rank in found[f"{strategy} {steps}"]) < BFLOAT16


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_training_starts_from_the_weights_as_they_were_built(strategy: str, folder: Path) -> None:
    """And not from what casting the model to bfloat16 leaves of them."""
    found = everything(strategy, "bf16", folder)
    assert all(of_rank["exact"] for of_rank in found[f"{strategy} 16"])
