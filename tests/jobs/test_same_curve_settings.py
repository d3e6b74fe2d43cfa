"""Optimizers by their class, and what surrounds the loop, leave the curve as it is.

| promised | strategies and worlds | tests |
|---|---|---|
| An optimizer by its class has the curve of one process, or is refused in one line | all on 2 (nightly) | test_classes_have_the_curve_of_one_process_or_are_refused_before_training |
| A loop written by the user has the trainer's numbers and checkpoints | ZeRO-2, then FSDP2, ZeRO-3, DDP on 2, one process | test_a_loop_of_ones_own |
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from launchers import STRATEGIES, Job, command, run, trained

# Optimizers by their class


OWN = {
    **{"task": "brought_language:Language", "global_batch_size": 8, "log_every": 1},
    **{"max_steps": 20, "lr": 3e-3, "save_every": 10},
}
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
SAVED = [name for name, settings in OPTIMIZERS.items() if "keep_last" not in settings]


@cache
def optimized(strategy: str, folder: Path) -> dict[str, Job]:
    """Train with each class, and go on in the middle of the runs of one process."""
    configs = {name: {**OWN, **settings} for name, settings in OPTIMIZERS.items()}
    for name in SAVED if strategy != "single" else ():
        checkpoints = optimized("single", folder)[name].output_dir / "checkpoints"
        middle = {"resume": str(checkpoints / "step-00000010")}
        configs[f"{name}_resumed"] = {**configs[name], **middle}
    micro = "8" if strategy == "single" else "4"
    return trained(strategy, folder / strategy, configs, "--micro_batch_size", micro)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_classes_have_the_curve_of_one_process_or_are_refused_before_training(
    strategy: str, folder: Path
) -> None:
    alone, found = optimized("single", folder), optimized(strategy, folder)
    for name, settings in OPTIMIZERS.items():
        if strategy == "ddp" or name in BY_ELEMENT:
            losses = alone[name].losses
            assert len(losses) == 20 and losses[-1] < losses[0], name
            assert found[name].losses == pytest.approx(losses, rel=1e-5), name
            if name in SAVED:
                rest = found[f"{name}_resumed"].losses
                assert rest == pytest.approx(losses[10:], rel=1e-5), name
        else:
            rule = (
                rf"ConfigError: .*\(optimizer\): {settings['optimizer']!r}: each process holds .*"
            )
            end = "run it on replicas \\(DDP\\) or in one process, or take another one"
            assert re.fullmatch(rule + end, found[name].err), found[name].err
            assert not (found[name].output_dir / "metrics.jsonl").exists()


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
        assert (job.output_dir / "model/model.safetensors").exists()
        return [
            float(line.rpartition(" ")[2])
            for line in job.out.splitlines()
            if line.startswith("step ")
        ]

    losses = run([*command("ranks", "single", world=0), *words], tmp_path / "trainer").ok().losses
    unbroken = own_loop(launcher, "zero2")
    assert unbroken == pytest.approx(losses, rel=1e-5, abs=1e-6) and len(unbroken) == 30
    middle = ("--resume", str(tmp_path / "zero2/checkpoints/step-00000020"))
    for strategy in ("fsdp", "zero3", "single"):
        assert own_loop("ranks", strategy, *middle) == pytest.approx(
            losses[20:], rel=1e-5, abs=1e-6
        )
    trained_on = run([*command("ranks", "ddp"), *words, *middle], tmp_path / "trained_on").ok()
    assert trained_on.losses == pytest.approx(losses[20:], rel=1e-5, abs=1e-6)
