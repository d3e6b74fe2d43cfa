"""Muon, whose updates need whole matrices, has the curve of one process on every layout.

| promised | strategies and worlds | tests |
|---|---|---|
| Losses, norms and weights are those of one process, also with accumulation, experts, LoRA, an average, a step that is left out, unused and frozen parameters, and of an optimizer of one's own | ZeRO-3 on 2, FSDP2 on 3; all others on 2 and 3, HSDP on 4, ZeRO-3 with offload (nightly) | test_muon_has_the_curve_of_one_process |
| Under fp16 and its scaling too | FSDP2 on 3; DDP on 2 (nightly) | test_muon_under_fp16_follows_one_process |
| A run goes on from layout to layout | one process, ZeRO-3 on 2, FSDP2 on 3; then ZeRO-1 on 3, DDP on 2 (nightly) | test_a_run_goes_on_from_layout_to_layout |
| What cannot run right is refused in one line | one process, FSDP2 on 3 | test_what_cannot_run_is_refused_with_the_line_to_change |
"""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from launchers import json_in, launch_file, worked, wrapper_of
from safetensors.torch import load_file

Layout = tuple[str, int]
ALONE: Layout = ("single", 1)
# A run goes on from each to the next, after 3 steps.
CHAIN: list[Layout] = [("zero3", 2), ("fsdp", 3), ("zero1", 3), ("ddp", 2)]
SLOW: list[Layout] = [
    ("ddp", 3),
    ("fsdp", 2),
    ("hsdp", 4),
    ("zero1", 2),
    ("zero2", 2),
    ("zero2", 3),
    ("zero3", 3),
    ("zero3_offload", 2),
]
FREE = {"find_unused_parameters": True}
CASES: dict[str, dict[str, Any]] = {
    "llama": {"kind": "llama"},
    # The gradient of a bias before a normalisation is rounding, of which a small eps makes steps.
    "digits": {"kind": "digits", "of_task": {"width": 8}, "optimizer_settings": {"eps": 1e-3}},
    "experts": {"kind": "experts", "ema_decay": 0.9, **FREE},
    "accumulated": {"kind": "llama", "micro_batches": 2, "max_steps": 4},
    "skip": {
        "kind": "experts",
        "of_task": {"broken": 3},
        "on_nan": "skip",
        "max_steps": 6,
        **FREE,
    },
    "adapter": {"kind": "llama", "of_task": {"lora": True}, "max_steps": 4},
    "original": {
        "kind": "llama",
        "max_steps": 4,
        "optimizer_settings": {"nesterov": False, "adjust_lr_fn": "original", "adam_lr": 0.003},
    },
    "toy": {"kind": "experts", "optimizer": "row_scaled.RowScaled", "max_steps": 6, **FREE},
}
STEPS = 3 * len(CHAIN)
LEG = {"kind": "llama", "max_steps": STEPS, "save_every": 3, "keep_last": 5}
FP16 = {"kind": "llama", "mixed_precision": "fp16", "max_steps": 8}


@cache
def trained(layout: Layout, folder: Path) -> dict[str, dict[str, Any]]:
    """Train all cases under a layout, and go on from the layout before in the chain."""
    strategy, world = layout
    own = folder / f"{strategy}{world}"
    own.mkdir()
    cases: dict[str, dict[str, Any]] = dict(CASES)
    if layout in CHAIN:
        number = CHAIN.index(layout)
        cases["leg"] = {**LEG, "stop_at": 3 * number + 3}
        if number:
            trained(CHAIN[number - 1], folder)
            before = folder / "{}{}".format(*CHAIN[number - 1])
            step = before / "leg" / "checkpoints" / f"step-{3 * number:08d}"
            cases["leg"]["resume"] = str(step)
    if layout == ALONE:
        cases["leg"] = LEG
        adamw = {**LEG, "optimizer": "adamw", "stop_at": 3}
        step = own / "adamw" / "checkpoints" / "step-00000003"
        cases |= {"adamw": adamw, "changed": {**LEG, "resume": str(step)}}
    if strategy in ("single", "ddp", "fsdp"):  # DeepSpeed has no fp16 on a CPU
        cases["fp16"] = FP16
    if layout == ("fsdp", 3):
        cases["own"] = {"kind": "own", "optimizer": None, "max_steps": 2, "weight_decay": 0.01}
    file = Path("accel_configs") / f"{strategy}.yaml"
    if strategy not in ("hsdp", "zero3_offload"):
        file = launch_file(own / "accel.yaml", strategy, world)
    told = {"accel_config": str(file), "folder": str(own), "world": world, "cases": cases}
    worked(["tests/workers/muon_cases.py", json.dumps(told)], 0 if layout == ALONE else world)
    return {name: json_in(own / f"{name}.json") for name in cases}


def weights(layout: Layout, case: str, folder: Path) -> dict[str, torch.Tensor]:
    files = (folder / "{}{}".format(*layout) / case / "model").rglob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def slow(layouts: list[Layout]) -> list[Any]:
    return [pytest.param(layout, marks=pytest.mark.slow) for layout in layouts]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", [*CHAIN[:2], *slow([*CHAIN[2:], *SLOW])])
def test_muon_has_the_curve_of_one_process(layout: Layout, folder: Path) -> None:
    alone, found = trained(ALONE, folder), trained(layout, folder)
    for name in CASES:
        case = found[name]
        assert case["world"] == layout[1], name
        kind = layout[0].partition("_")[0].replace("hsdp", "fsdp")
        assert case["strategy"] == kind and case["class"].startswith(wrapper_of(kind))
        kept = [*alone[name]["state"][0]]
        assert all({*kept} >= {*own} for own in case["state"]), name
        assert ("momentum_buffer" in kept) == (name != "toy")

        rows = list(zip(case["rows"], alone[name]["rows"], strict=True))
        assert rows[0][1][0] > rows[-1][1][0], "the loss falls"
        for step, (own, expected) in enumerate(rows, 1):
            if name == "skip" and step == 3:
                assert not math.isfinite(own[0]) and not math.isfinite(expected[0])
                continue
            assert own == pytest.approx(expected, rel=1e-6), (name, step)

        ours, theirs = weights(layout, name, folder), weights(ALONE, name, folder)
        assert ours.keys() == theirs.keys() and ours
        for key, tensor in theirs.items():
            difference = float((ours[key] - tensor).abs().max())
            assert difference <= 2e-5 * float(tensor.abs().max().clamp(min=1e-3)), (name, key)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("layout", [("fsdp", 3), *slow([("ddp", 2)])])
def test_muon_under_fp16_follows_one_process(layout: Layout, folder: Path) -> None:
    alone, found = trained(ALONE, folder)["fp16"], trained(layout, folder)["fp16"]
    losses = [[row[0] for row in case["rows"]] for case in (alone, found)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-3) and losses[0][-1] < losses[0][0] - 0.1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("legs", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_goes_on_from_layout_to_layout(legs: int, folder: Path) -> None:
    unbroken = trained(ALONE, folder)["leg"]["rows"]
    rows = [row for layout in CHAIN[:legs] for row in trained(layout, folder)["leg"]["rows"]]
    assert len(unbroken) == STEPS and len(rows) == 3 * legs
    for own, expected in zip(rows, unbroken, strict=False):
        assert own == pytest.approx(expected, rel=1e-6)


@pytest.mark.timeout(900)
def test_what_cannot_run_is_refused_with_the_line_to_change(folder: Path) -> None:
    changed = trained(ALONE, folder)["changed"]["error"]
    line = 'optimizer: "torch.optim.adamw.AdamW" -> "trainer.optim.muon.Muon"'
    assert changed.count("\n") == 0 and line in changed
    own = trained(("fsdp", 3), folder)["own"]["error"]
    assert own.count("\n") == 0 and own.endswith("in one process, or take optimizer: muon"), own
