"""Language tasks on the device have the curves of a CPU, under each strategy."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gpu_jobs import STRATEGIES, Results, job_pool, launch_files, result, start
from launchers import HIDE_GPUS, installed
from tuning import task_settings

from trainer.commands.curves import LOW

TEXTS = {"model": "llama", "data": "texts.jsonl"}
PAIRS = {"model": "llama", "data": "pairs.jsonl"}
LANGUAGE = "trainer.language"
# The name of the task, settings of the task, settings of the training.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "packed": ("CausalLM", TEXTS, {}),
    "padded": ("CausalLM", {**TEXTS, "packing": "none"}, {}),
    "eager": ("CausalLM", {**TEXTS, "attention": "eager"}, {}),
    "fused": ("CausalLM", {**TEXTS, "loss": "fused"}, {}),
    "recomputed": ("CausalLM", {**TEXTS, "activation_checkpointing": True}, {}),
    "adapter": ("CausalLM", {**TEXTS, "adapter": {"r": 4}}, {}),
    "gpt2": ("CausalLM", {**TEXTS, "model": "gpt2"}, {}),
    "experts": ("CausalLM", {**TEXTS, "model": "mixtral"}, {"on_nan": "skip"}),
    "sgd": ("CausalLM", TEXTS, {"optimizer": "sgd", "on_nan": "skip"}),
    "average": ("CausalLM", {**TEXTS, "evaluation": 0.1}, {"ema_decay": 0.9, "eval_every": 5}),
    "deterministic": ("CausalLM", TEXTS, {"deterministic": True}),
    "masked": ("MaskedLM", {**TEXTS, "model": "bert"}, {}),
    "dpo": ("DPO", {**PAIRS, "loss": "fused"}, {}),
    "ipo": ("DPO", {**PAIRS, "reference": "computed_once", "objective": "ipo", "beta": 0.3}, {}),
    "dpo-adapter": ("DPO", {**PAIRS, "adapter": {"r": 4}, "sft_weight": 0.2}, {}),
    "reward": ("RewardModel", {**PAIRS, "sequence_length": 128}, {"lr": 1e-3}),
    "documents": ("CausalLM", {**TEXTS, "attention": "varlen"}, {}),
    "bf16": ("CausalLM", TEXTS, {"mixed_precision": "bf16"}),
    "bf16-mask": ("CausalLM", {**TEXTS, "attention": "sdpa"}, {"mixed_precision": "bf16"}),
    "bf16-dpo": ("DPO", {**PAIRS, "attention": "varlen"}, {"mixed_precision": "bf16"}),
    "fp16": ("CausalLM", TEXTS, {"mixed_precision": "fp16"}),
}
pytestmark = pytest.mark.skipif(not installed("datasets", "peft"), reason="datasets and peft read")


@cache
def jobs(folder: Path, world: int) -> dict[str, Future[Results]]:
    """Start a job on the CPU and a job under each strategy, all at the same time."""
    pool = job_pool()
    on_cpu = pool.submit(start, folder / "cpu", commands(folder, "cpu", 1), 0, {}, HIDE_GPUS)
    found = {"cpu": on_cpu}
    for how in STRATEGIES:
        cases, files = commands(folder, how, world), launch_files(folder, how, world)
        found[how] = pool.submit(start, folder / how, cases, world, files)
    return found


def commands(folder: Path, how: str, world: int) -> list[list[str]]:
    """Return the cases of a job: each trains ten steps of two rows."""
    found = []
    for name, (kind, of_task, settings) in CASES.items():
        cache = {"cache_dir": str(folder / f"cache-{how}-{name}")}
        task = task_settings(folder, **{"sequence_length": 96, **of_task, **cache})
        words = {
            "task": f"{LANGUAGE}:{kind}",
            **{f"task_settings.{key}": json.dumps(value) for key, value in task.items()},
            **{"micro_batch_size": 2 // world, "max_steps": 10, "log_every": 1, "keep_last": 0},
            **{"lr": 3e-3, "eps": 1e-4, "weight_decay": 0.01, "max_grad_norm": 1.0},
            **{"schedule": "constant", "warmup_steps": 0},
            **settings,
        }
        found.append(["command", name, json.dumps([f"--{k}={v}" for k, v in words.items()])])
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_task_has_the_curve_of_the_cpu(
    strategy: str, folder: Path, gpus: int, note: Callable[..., None]
) -> None:
    found = jobs(folder / "language", gpus)
    gaps = {}
    for name in CASES:
        expected = result(found["cpu"].result(), f"command-{name}")["losses"]
        told = result(found[strategy].result(), f"command-{name}")
        assert len(told["losses"]) == len(expected) == 10
        gaps[name] = max(
            abs(loss - expected[step]) / abs(expected[step])
            for step, loss in told["losses"].items()
        )
    note(furthest_losses=gaps)
    low = {name: gaps.pop(name) for name in CASES if name.startswith(("bf16", "fp16"))}
    assert max(gaps.values()) <= 2e-6, gaps
    assert max(low.values()) <= LOW.step, low
