"""Muon, whose updates need whole matrices, has the curve of one process on every layout.

| promised | strategies and worlds | tests |
|---|---|---|
| Losses, norms and weights are those of one process, also with accumulation, experts, LoRA, an average, a step that is left out, unused and frozen parameters, and of an optimizer of one's own | ZeRO-3 on 2, FSDP2 on 3; all others on 2 and 3, HSDP on 4, ZeRO-3 with offload (nightly) | test_muon_has_the_curve_of_one_process |
| Under fp16 and its scaling too | FSDP2 on 3; DDP on 2 (nightly) | test_muon_under_fp16_follows_one_process |
| A run goes on from layout to layout | one process, ZeRO-3 on 2, FSDP2 on 3; then ZeRO-1 on 3, DDP on 2 (nightly) | test_a_run_goes_on_from_layout_to_layout |
| What cannot run right is refused in one line | one process, FSDP2 on 3 | test_what_cannot_run_is_refused_with_the_line_to_change |
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from launchers import Job, slow_but, trained
from safetensors.torch import load_file

Layout = tuple[str, int]
ALONE: Layout = ("single", 1)
# A run goes on from each to the next, after 3 steps.
CHAIN: list[Layout] = [("zero3", 2), ("fsdp", 3), ("zero1", 3), ("ddp", 2)]
LAYOUTS: list[Layout] = [
    *CHAIN,
    ("ddp", 3),
    ("fsdp", 2),
    ("hsdp", 4),
    ("zero1", 2),
    ("zero2", 2),
    ("zero2", 3),
    ("zero3", 3),
    ("zero3_offload", 2),
]
CONFIG = {
    **{"task": "muon_cases:SmallLlama", "optimizer": "muon", "schedule": "cosine", "lr": 0.01},
    **{"weight_decay": 0.1, "max_grad_norm": 1.0, "log_every": 1, "export_dtype": "float32"},
    **{"global_batch_size": 24, "max_steps": 20},
}
EXPERTS = {"task": "muon_cases:Experts", "find_unused_parameters": True}
CASES: dict[str, dict[str, Any]] = {
    "llama": {},
    # The gradient of a bias before a normalisation is rounding, of which a small eps makes steps.
    "digits": {
        **{"task": "smooth_cnn:SmoothCNN", "task_settings": {"width": 8}},
        "optimizer_settings": {"eps": 1e-3},
    },
    "experts": {**EXPERTS, "ema_decay": 0.9},
    "accumulated": {"max_steps": 4},
    "skip": {**EXPERTS, "task_settings": {"broken": 3}, "on_nan": "skip", "max_steps": 6},
    "adapter": {"task_settings": {"lora": True}, "max_steps": 4},
    "original": {
        "max_steps": 4,
        "optimizer_settings": {"nesterov": False, "adjust_lr_fn": "original", "adam_lr": 0.003},
    },
    "toy": {**EXPERTS, "optimizer": "row_scaled.RowScaled", "max_steps": 6},
}
STEPS = 3 * len(CHAIN)
LEG = {"max_steps": STEPS, "save_every": 3, "keep_last": 5}


@cache
def muon(layout: Layout, folder: Path) -> dict[str, Job]:
    """Train all cases under a layout, and go on from the layout before in the chain."""
    how, world = layout
    own = folder / f"{how}{world}"
    cases: dict[str, dict[str, Any]] = dict(CASES)
    if layout in CHAIN:
        number = CHAIN.index(layout)
        cases["leg"] = {**LEG, "stop_at": 3 * number + 3}
        if number:
            before = muon(CHAIN[number - 1], folder)["leg"].output_dir / "checkpoints"
            cases["leg"]["resume"] = str(before / f"step-{3 * number:08d}")
    if layout == ALONE:
        step = own / "adamw/checkpoints/step-00000003"
        cases |= {"leg": LEG, "adamw": {**LEG, "optimizer": "adamw", "stop_at": 3}}
        cases["changed"] = {**LEG, "resume": str(step)}
    if how in ("single", "ddp", "fsdp"):  # DeepSpeed has no fp16 on a CPU
        cases["fp16"] = {"mixed_precision": "fp16", "max_steps": 8}
    if layout == ("fsdp", 3):
        task = {"task": "muon_cases:OwnMuon", "optimizer": None}
        cases["own"] = {**task, "max_steps": 2, "weight_decay": 0.01}
    configs = {}
    for name, settings in cases.items():
        micro = 24 // world // (2 if name == "accumulated" else 1)
        configs[name] = {**CONFIG, "micro_batch_size": micro, **settings}
    return trained(how, own, configs, world=world)


def weights(job: Job) -> dict[str, torch.Tensor]:
    files = (job.output_dir / "model").rglob("*.safetensors")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def kinds_of_state(job: Job) -> list[set[str]]:
    """Return the kinds of optimizer state in the part of each rank of a checkpoint."""
    last = max((job.output_dir / "checkpoints").glob("step-*"))
    parts = [load_file(path) for path in sorted(last.glob("rank-*.safetensors"))]
    return [{key.split("/")[0] for key in part if key.startswith("optimizer.")} for part in parts]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("how", "world"), slow_but(CHAIN[:2], LAYOUTS))
def test_muon_has_the_curve_of_one_process(how: str, world: int, folder: Path) -> None:
    alone, found = muon(ALONE, folder), muon((how, world), folder)
    for name in CASES:
        one, job = alone[name], found[name]
        [kept] = kinds_of_state(one)
        assert all(kept >= own for own in kinds_of_state(job)), name
        assert ("optimizer.momentum_buffer" in kept) == (name != "toy")

        assert one.losses[0] > one.losses[-1], "the loss falls"
        assert (one.losses[2] is None) == (name == "skip"), "JSON has no NaN"
        for key in ("loss", "grad_norm"):
            ours, theirs = (np.array(of.column(key), dtype=float) for of in (job, one))
            assert ours == pytest.approx(theirs, rel=1e-6, nan_ok=True), (name, key)

        found_weights = weights(job)
        assert found_weights.keys() == weights(one).keys()
        for key, tensor in weights(one).items():
            difference = float((found_weights[key] - tensor).abs().max())
            assert difference <= 2e-5 * float(tensor.abs().max().clamp(min=1e-3)), (name, key)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("how", "world"), slow_but([("fsdp", 3)], [("fsdp", 3), ("ddp", 2)]))
def test_muon_under_fp16_follows_one_process(how: str, world: int, folder: Path) -> None:
    alone, found = (muon(of, folder)["fp16"].losses for of in (ALONE, (how, world)))
    assert found == pytest.approx(alone, rel=1e-3) and alone[-1] < alone[0] - 0.1


@pytest.mark.timeout(900)
@pytest.mark.parametrize("legs", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_a_run_goes_on_from_layout_to_layout(legs: int, folder: Path) -> None:
    unbroken = muon(ALONE, folder)["leg"]
    jobs = [muon(layout, folder)["leg"] for layout in CHAIN[:legs]]
    for key in ("loss", "grad_norm"):
        rows = [value for job in jobs for value in job.column(key)]
        assert rows == pytest.approx(unbroken.column(key)[: 3 * legs], rel=1e-6)


@pytest.mark.timeout(900)
def test_what_cannot_run_is_refused_with_the_line_to_change(folder: Path) -> None:
    changed = muon(ALONE, folder)["changed"].err
    line = 'optimizer: "torch.optim.adamw.AdamW" -> "trainer.optim.muon.Muon"'
    assert changed.count("\n") == 0 and line in changed
    own = muon(("fsdp", 3), folder)["own"].err
    assert own.count("\n") == 0 and own.endswith("in one process, or take optimizer: muon"), own
