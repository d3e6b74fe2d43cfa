"""Formulas of memory and traffic: the ZeRO paper, and what a plan.json decides."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from cost_formulas import states
from launchers import ROOT

from trainer import load_config, load_task
from trainer.commands.planner.costs import (
    Case,
    Part,
    default_bucket,
    footprint,
    paper_bytes,
    parts_of,
    sent_by_plan,
    sent_bytes,
)
from trainer.strategies.deepspeed import bucket_elements

STAGES = {"zero1": 1, "zero2": 2, "zero3": 3}
NAMES = {0: "ddp", 1: "zero1", 2: "zero2", 3: "zero3"}


# Rajbhandari et al. 2020, figure 1: 7.5 billion parameters, 64 GPUs, mixed-precision Adam (K = 12),
# in GB.
PAPER = {0: 120.0, 1: 31.4, 2: 16.6, 3: 1.9}


@pytest.mark.parametrize("stage", PAPER)
def test_paper_bytes_are_the_table_of_the_paper(stage: int) -> None:
    billion = 7_500_000_000
    assert round(paper_bytes(stage, billion, 64) / 1e9, 1) == PAPER[stage]
    # Replicas keep parameters and gradients in full precision (4 + 4 + 8), the engine 2 + 2 + 12:
    # the same sum.
    assert states(NAMES[stage], billion, 64, mixed_precision="bf16") / 1e9 == pytest.approx(
        PAPER[stage], abs=0.05
    )


def test_footprint_where_the_precision_policy_differs_from_the_paper() -> None:
    # In full precision the engine keeps a second copy of the parameters: 4 + 4 + 12.
    assert states("zero1", 1000, 1) == 20_000
    assert states("ddp", 1000, 2) == states("ddp", 1000, 2, mixed_precision="bf16") == 16_000
    assert states("fsdp", 1000, 2) == 8_000


def test_bytes_sent_follow_section_7() -> None:
    """Twice the model for replicas, three times for what gathers in forward and backward.

    Stages 1 and 2 are twice the model in the paper; the engine all-reduces before it gathers, which
    is three times.
    """
    sent = {
        name: sent_bytes(Case(strategy=name, world_size=1000), 1000, 1000)
        for name in ("ddp", "zero1", "zero2", "zero3", "fsdp")
    }
    model = 4 * 1000 * 0.999
    assert {name: round(count / model) for name, count in sent.items()} == {
        "ddp": 2, "zero1": 3, "zero2": 3, "zero3": 3, "fsdp": 3,
    }  # fmt: skip


def test_sync_each_batch_keeps_no_whole_gradient_and_sends_more() -> None:
    held = Case(strategy="fsdp", world_size=2, accumulation_steps=4)
    each = dataclasses.replace(held, sync_each_batch=True)
    part = Part(numel=1000, rows=1000)
    assert (footprint(held, [part]).gradients, footprint(each, [part]).gradients) == (4000, 2000)
    assert sent_bytes(each, 1000, 1000) - sent_bytes(held, 1000, 1000) == 3 * 4 * 1000 // 2


def test_zero_buffers_and_snapshot() -> None:
    """Eight bytes for each element of a bucket (``test_commands.py`` measures it), with overlapping a
    bucket more.
    """
    parts = [Part(numel=10**6, rows=1000, count=1000)]
    for stage, layers in (("zero1", 0), ("zero2", 0), ("zero3", 2 * 150_000_000)):
        case = Case(strategy=stage, world_size=8, mixed_precision="bf16", unit=10**8)
        assert footprint(case, parts).buffers == 8 * 500_000_000 + layers
        assert footprint(case, parts).snapshot == 12 * 10**9 // 8
    overlapping = Case(
        strategy="zero2", world_size=8, mixed_precision="bf16", bucket=10**8, overlap=True
    )
    assert footprint(overlapping, parts).buffers == (2 + 2 + 2 + 4) * 10**8
    larger = [Part(numel=10**9, rows=1000)]  # than a bucket: exchanged alone
    assert (
        footprint(Case(strategy="zero2", world_size=8, bucket=10**8), larger).buffers
        == 4 * 10**8 + 4 * 10**9
    )


def test_zero3_frees_its_layers_before_the_only_exchange() -> None:
    """But the first, where it is not small (``test_commands.py`` measures it)."""
    embedding, layers = Part(numel=10**6, rows=1000), Part(numel=10**6, rows=1000, count=9)
    first_conv = Part(numel=1000, rows=10)
    case = Case(strategy="zero3", world_size=2)
    bfloat16 = dataclasses.replace(case, mixed_precision="bf16")
    reduced = dataclasses.replace(bfloat16, reduce_width=2)
    assert footprint(case, [embedding, layers]).buffers == 8 * 10**7 + 4 * 10**6
    assert footprint(bfloat16, [embedding, layers]).buffers == 8 * 10**7 + 2 * 10**6
    assert footprint(reduced, [embedding, layers]).buffers == 4 * 10**7 + 2 * 10**6
    assert footprint(case, [first_conv, layers]).buffers == 8 * (9 * 10**6 + 1000)

    # Adapters on a frozen model: little is exchanged, and the layers that compute need more.
    frozen = dataclasses.replace(layers, trainable=False, width=2)
    adapters = Part(numel=1000, rows=10, count=9)
    lora = dataclasses.replace(bfloat16, bucket=9000)
    assert footprint(lora, [frozen, adapters]).buffers == 4 * 9000 + 2 * (9 * 10**6 + 9000)


@pytest.mark.parametrize("strategy", STAGES)
@pytest.mark.parametrize("gpu", [False, True])
def test_the_bucket_is_that_of_the_strategy(strategy: str, gpu: bool) -> None:
    case = Case(strategy=strategy, world_size=8, gpu=gpu)
    for elements in (10, 10**8, 10**9, 10**10):
        expected = bucket_elements(elements, STAGES[strategy], on_gpu=gpu)
        assert default_bucket(case, elements) == expected


@pytest.mark.parametrize("name", ["llama_stdlib", "digits_cnn"])
def test_states_per_rank_in_the_readme(name: str) -> None:
    model = load_task(load_config(["--config", str(ROOT / f"examples/configs/{name}.yaml")]))[
        0
    ].build_model()
    told = [
        line
        for line in (ROOT / "docs" / "numbers.md").read_text().splitlines()
        if line.startswith("| state per rank |")
    ]
    row = told[("llama_stdlib", "digits_cnn").index(name)]
    for strategy, value in zip(
        ("ddp", "fsdp", "zero1", "zero2", "zero3"), row.split("|")[2:-1], strict=True
    ):
        states = footprint(Case(strategy=strategy, world_size=2), parts_of(model)).states
        number, unit = value.split()
        digits = len(number.partition(".")[2])
        assert number == f"{states / {'MiB': 2**20, 'KiB': 2**10}[unit]:.{digits}f}", strategy


PLAN: dict[str, Any] = {
    "strategy": "ddp", "world_size": 2, "mixed_precision": "no", "accumulation_steps": 1, "fsdp": {}, "deepspeed": {},
    "parameters": 100, "trainable_parameters": 60,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 4 * 60),
        ({"strategy": "single", "world_size": 1}, 0),
        ({"strategy": "fsdp"}, (2 * 4 * 100 + 4 * 60) // 2),
        ({"strategy": "fsdp", "fsdp": {"reshard_after_forward": False}}, (4 * 100 + 4 * 60) // 2),
        ({"strategy": "zero2", "accumulation_steps": 3}, (3 * 2 * 4 * 60 + 4 * 60) // 2),
        ({"strategy": "zero3", "mixed_precision": "bf16"}, (4 * 60 + 2 * 2 * 100) // 2),
    ],
)
def test_sent_bytes_follow_the_plan(changes: dict[str, Any], expected: int) -> None:
    assert sent_by_plan(PLAN | changes) == expected


def test_tensor_parallel_plan_has_no_sent_bytes() -> None:
    assert sent_by_plan(PLAN | {"strategy": "fsdp", "fsdp": {"tp_size": 2}}) is None


@pytest.mark.parametrize("key", PLAN)
def test_plan_without_a_key_that_decides_has_no_sent_bytes(key: str) -> None:
    assert sent_by_plan({name: value for name, value in PLAN.items() if name != key}) is None


def test_older_plan_with_its_own_sent_bytes_gives_the_same() -> None:
    assert sent_by_plan(PLAN | {"sent_bytes_per_step": 240}) == 240
