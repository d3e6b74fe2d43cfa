"""Optimizers, settings that save memory or time, and what surrounds the loop leave the curve as it is.

| promised | strategies and worlds | tests |
|---|---|---|
| An optimizer by its class has the curve of one process, or is refused in one line | all on 2 (nightly) | test_classes_have_the_curve_of_one_process_or_are_refused_before_training |
| Compiling, recomputing, adapters and 4 bits have the curve without them | all on 2, ZeRO-3 with offload (nightly) | test_keys_that_save_memory_or_time_leave_the_curve_of_one_process |
| A loop written by the user has the trainer's numbers and checkpoints | ZeRO-2, then FSDP2, ZeRO-3, DDP on 2, one process | test_a_loop_of_ones_own |
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import STRATEGIES, command, json_in, run, worked
from tiny_language import language_settings

# Optimizers by their class


STEPS = 20
OWN = {"max_steps": STEPS, "lr": 3e-3, "save_every": 10}
OPTIMIZERS: dict[str, dict[str, Any]] = {
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
    "adafactor": {"optimizer": "torch.optim.Adafactor", "keep_last": 0, "save_every": None},
    "lamb": {"optimizer": "own_optimizers.Lamb", "optimizer_settings": {"trust": 0.5}},
}
# The others look at whole parameters, or have state before the first step.
BY_ELEMENT = ("adamw", "rmsprop", "lion")
OPTIMIZERS_THAT_RUN = {"ddp": tuple(OPTIMIZERS)}
SAVED = [name for name, settings in OPTIMIZERS.items() if "keep_last" not in settings]


@cache
def trained_with_optimizers(strategy: str, folder: Path) -> dict[str, dict[str, Any]]:
    place = folder / "optimizers"
    cases = {name: {**OWN, **settings} for name, settings in OPTIMIZERS.items()}
    if strategy != "single":
        trained_with_optimizers("single", folder)
        for name in SAVED:
            checkpoint = str(place / "single" / name / "checkpoints" / "step-00000010")
            cases[f"{name}_resumed"] = {**cases[name], "resume": checkpoint}
    words = [
        "tests/workers/optimized.py",
        f"accel_configs/{strategy}.yaml",
        place / strategy,
        json.dumps(cases),
    ]
    worked(words, 0 if strategy == "single" else 2)
    return {name: json_in(place / strategy / f"{name}.json") for name in cases}


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_classes_have_the_curve_of_one_process_or_are_refused_before_training(
    strategy: str, folder: Path
) -> None:
    alone, found = (
        trained_with_optimizers("single", folder),
        trained_with_optimizers(strategy, folder),
    )
    for name in OPTIMIZERS:
        if name in OPTIMIZERS_THAT_RUN.get(strategy, BY_ELEMENT):
            assert found[name]["losses"] == pytest.approx(alone[name]["losses"], rel=1e-5), name
            assert (
                len(alone[name]["losses"]) == STEPS
                and alone[name]["losses"][-1] < alone[name]["losses"][0]
            ), name
        else:
            [line] = found[name]["error"].splitlines()
            assert line.startswith(
                f"TrainConfig: optimizer: {OPTIMIZERS[name]['optimizer']!r}: each process holds "
            )
            assert line.endswith("run it on replicas (DDP) or in one process, or take another one")
            assert not (folder / "optimizers" / strategy / name / "metrics.jsonl").exists()
    for name in SAVED:
        if "losses" in found[name]:
            assert found[f"{name}_resumed"]["losses"] == pytest.approx(
                alone[name]["losses"][10:], rel=1e-5
            ), name


# Settings that save memory or time


SAVINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "compile": ({}, {"compile": True}),
    "every second layer": ({"activation_checkpointing": 2}, {}),
    "eager": ({"attention": "eager"}, {}),
    "all of it": ({"activation_checkpointing": True, "adapter": {"r": 4}}, {"compile": True}),
    "adapter": ({"adapter": {"r": 4}}, {}),
    "4 bits": ({"adapter": {"r": 4, "quantize": "nf4"}}, {}),
    "all of it in 4 bits": (
        {"activation_checkpointing": True, "adapter": {"r": 4, "quantize": "nf4"}},
        {"compile": True},
    ),
}


def savings_under(how: str) -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    """ZeRO-3 refuses ``compile: true``."""
    refused = {"compile": True} if how.startswith("zero3") else None
    return {name: case for name, case in SAVINGS.items() if case[1] != refused}


@cache
def trained_with_savings(how: str, folder: Path) -> dict[str, dict[str, Any]]:
    place = folder / "savings"
    task = language_settings(place, sequence_length=64, texts=60)
    savings = savings_under(how)
    cases = {name: ({**task, **own}, more) for name, (own, more) in savings.items()}
    words = [
        "tests/workers/saving.py",
        f"accel_configs/{how}.yaml",
        place / how,
        json.dumps(cases),
    ]
    worked(words, 0 if how == "single" else 2, timeout=900)
    return {name: json_in(place / how / f"{name}.json") for name in savings}


@pytest.mark.slow
@pytest.mark.parametrize("how", [*STRATEGIES, "zero3_offload"])
def test_keys_that_save_memory_or_time_leave_the_curve_of_one_process(
    how: str, folder: Path
) -> None:
    alone, found = trained_with_savings("single", folder), trained_with_savings(how, folder)
    for name in savings_under(how):
        adapter = SAVINGS[name][0].get("adapter", {})
        reference = alone["4 bits" if "quantize" in adapter else "adapter" if adapter else "plain"]
        assert found[name]["losses"] == pytest.approx(reference["losses"], rel=1e-5), name
        assert len(reference["losses"]) == 20 and found[name]["names"] == reference["names"]
        assert bool(found[name]["compiled"]) == ("compile" in SAVINGS[name][1]), name


# What surrounds the loop


DIGITS = ["--config", "examples/configs/digits_cnn.yaml", "--log_every", "1", "--warmup_steps", "0"]


@pytest.mark.parametrize("launcher", [pytest.param("accelerate", marks=pytest.mark.slow), "ranks"])
def test_a_loop_of_ones_own(launcher: str, tmp_path: Path) -> None:
    """It has the trainer's numbers, and other strategies go on from its checkpoint, the trainer
    too.
    """
    words = [*DIGITS, "--drop_last", "true", "--max_steps", "30", "--save_every", "20"]

    def own_loop(launcher: str, strategy: str, *more: str) -> list[float]:
        world = 0 if strategy == "single" else 2
        job = run(
            [*command(launcher, strategy, world, "examples/own_loop.py"), *words, *more],
            tmp_path / strategy,
        )
        assert (
            f"done under {strategy} on {1 if strategy == 'single' else 2} processes" in job.ok().out
        )
        assert (job.output_dir / "model" / "model.safetensors").exists()
        return [
            float(line.rpartition(" ")[2])
            for line in job.out.splitlines()
            if line.startswith("step ")
        ]

    losses = run([*command("ranks", "single", world=0), *words], tmp_path / "trainer").ok().losses
    unbroken = own_loop(launcher, "zero2")
    assert unbroken == pytest.approx(losses, rel=1e-5, abs=1e-6) and len(unbroken) == 30
    middle = ("--resume", str(tmp_path / "zero2" / "checkpoints" / "step-00000020"))
    for strategy in ("fsdp", "zero3", "single"):
        assert own_loop("ranks", strategy, *middle) == pytest.approx(
            losses[20:], rel=1e-5, abs=1e-6
        )
    trained_on = run([*command("ranks", "ddp"), *words, *middle], tmp_path / "trained_on").ok()
    assert trained_on.losses == pytest.approx(losses[20:], rel=1e-5, abs=1e-6)
