"""Requests, launchers and machines held against each other: who runs, and what the plan says."""

from __future__ import annotations

from typing import Any

import pytest
from origins import origin, sourced
from plans import (
    CPU,
    FOUR_GPUS,
    SAID,
    asked,
    launched,
    plan,
    refusal,
    request,
)

from trainer.errors import Sourced
from trainer.launching.request import Request
from trainer.reporting.banner import plan_rows
from trainer.strategies.deepspeed import engine_config


def test_more_processes_than_gpus() -> None:
    line = (
        "5 processes on this machine, but only 4 GPUs are visible; "
        "launch at most 4, or set use_cpu: true to rehearse on the CPU"
    )
    assert refusal(lambda: plan(request("ddp"), world=5, machine=FOUR_GPUS)) == line
    assert plan(request("ddp"), world=4, machine=FOUR_GPUS).device == "cuda"
    # Two machines with four each: what counts is what runs on this one.
    two_machines = launched(8, local_world_size=4)
    assert (
        plan(request("ddp", num_machines=2), launcher=two_machines, machine=FOUR_GPUS).world_size
        == 8
    )


@pytest.mark.parametrize(
    ("name", "gpus", "runs"),
    [
        ("torchrun", 8, True),
        ("torchrun", 1, False),
        ("srun", 2, False),
        ("srun", 1, True),
        ("mpirun", 1, True),
        ("environment", 1, True),
    ],
)
def test_a_launcher_may_show_each_process_its_own_gpu_only(
    name: str, gpus: int, runs: bool
) -> None:
    """Eight processes on each of two machines: those that start one process a rank may do so."""
    launcher = launched(16, name, local_rank=3, local_world_size=8)
    if runs:
        made = plan(request("ddp"), launcher=launcher, machine=gpus)
        assert (made.device, made.launcher) == ("cuda", name)
    else:
        line = f"8 processes on this machine, but only {gpus} GPUs are visible; launch at most {gpus}, "
        said = refusal(lambda: plan(request("ddp"), launcher=launcher, machine=gpus))
        assert said.startswith(line)


HINT = "launch as many (by accelerate launch, torchrun or deepspeed), or change the file"


@pytest.mark.parametrize(("name", "world"), [("python", 1), ("torchrun", 3)])
def test_another_world_than_the_file_asks_for(name: str, world: int) -> None:
    asks = request("fsdp", world_size=sourced(2, "a.yaml:9 (num_processes)"))
    line = f"a.yaml:9 (num_processes): asks for 2 processes, but {world} run under {name}; {HINT}"
    assert refusal(lambda: plan(asks, launcher=launched(world, name))) == line
    assert plan(asks, launcher=launched(2)).world_size == 2
    alone = refusal(lambda: plan(request("fsdp"), launcher=launched(1, "python")))
    assert alone.endswith("needs a launcher for a single process too: torchrun --nproc_per_node 1")


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("accelerate", sourced(2, "a.yaml:9 (num_processes)")),
        ("environment", None),
        ("python", None),
    ],
)
def test_ddp_under_a_launcher_of_one_process(name: str, asked: Sourced[int] | None) -> None:
    made = plan(request("ddp", world_size=asked), launcher=launched(1, name))
    assert (made.strategy, made.world_size, made.rehearsal) == ("single", 1, False)
    assert made.notices == (
        f"a.yaml:2 (distributed_type): {name} runs one process, thus without DDP",
    )


def test_groups_that_do_not_divide_the_processes() -> None:
    origins = {"fsdp.dp_replicate_size": origin("a.yaml:5 (dp)")}
    asks = request("fsdp", fsdp={"dp_replicate_size": 2}, origins=origins)
    assert plan(asks, world=8).world_size == 8
    said = "a.yaml:5: dp: 2: must divide the number of processes, 3"
    assert refusal(lambda: plan(asks, world=3)) == said


def test_zero_3_does_not_compile() -> None:
    said = refusal(lambda: plan(request("zero3"), compile=True))
    assert said.startswith(f"{SAID}: compile: true: ZeRO-3 gathers layers by hooks inside of")
    assert plan(request("zero2"), compile=True).compile


def test_a_compiler_of_the_file_and_none_in_the_config() -> None:
    compiled = sourced(True, "a.yaml:4 (dynamo_backend)")
    asks = request("ddp", dynamo={"backend": "inductor"}, compile=compiled)
    assert plan(asks).compile
    rule = "disagrees with True at a.yaml:4 (dynamo_backend); keep one of the two"
    assert refusal(lambda: plan(asks, compile=False)) == f"{SAID}: compile: false: {rule}"


# Learning rate


@pytest.mark.parametrize(("rule", "lr"), [("none", 1e-3), ("linear", 4e-3), ("sqrt", 2e-3)])
def test_the_learning_rate_follows_the_batch(rule: str, lr: float) -> None:
    scaling = {"lr_scaling": rule, "reference_batch_size": 16} if rule != "none" else {}
    made = plan(None, world=4, micro_batch_size=16, lr=1e-3, **scaling)
    assert made.lr == pytest.approx(lr, rel=1e-12)
    assert (made.lr_reference, made.lr_scaling, made.global_batch_size) == (1e-3, rule, 64)
    assert made.reference_batch_size == (64 if rule == "none" else 16)


@pytest.mark.parametrize(
    ("strategy", "steps", "asked_for", "unused", "dtype"),
    [
        ("zero2", 2, None, False, "fp32"),
        ("zero2", 1, None, False, "bf16"),
        ("zero2", 2, None, True, "bf16"),
        ("zero1", 1, "fp32", False, "fp32"),
        ("fsdp", 2, None, False, "fp32"),
    ],
)
def test_gradients_add_up_in_full_precision(
    strategy: str, steps: int, asked_for: str | None, unused: bool, dtype: str
) -> None:
    """Unless one is all there is, they wait whole, or the JSON says otherwise."""
    wish = request(strategy)
    if asked_for:
        wish = request(
            strategy, deepspeed={**wish.deepspeed, "data_types": {"grad_accum_dtype": asked_for}}
        )
    made = plan(
        wish, mixed_precision="bf16", accumulation_steps=steps, find_unused_parameters=unused
    )
    assert made.precision["gradients"] == dtype
    if strategy.startswith("zero"):  # stage 1 is told after it is built
        told = engine_config(made)["data_types"]["grad_accum_dtype"]
        assert told == ("bf16" if strategy == "zero1" else dtype)


@pytest.mark.parametrize(
    ("machine", "settings", "compute"),
    [
        (FOUR_GPUS, {"float32": "tf32"}, "tf32"),
        (FOUR_GPUS, {"float32": "tf32", "mixed_precision": "bf16"}, "bf16"),
        (CPU, {"float32": "tf32"}, "fp32"),
    ],
)
def test_the_plan_says_how_float32_is_computed(
    machine: int, settings: dict[str, str], compute: str
) -> None:
    made = plan(request("zero2"), machine=machine, **settings)
    assert made.precision["compute"] == compute and made.precision["gradients"] in ("fp32", "bf16")


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero1", "zero2", "zero3"])
def test_gradients_travel_in_the_dtype_of_the_config(strategy: str) -> None:
    made = plan(request(strategy), reduce_dtype="bf16")
    assert (made.reduce_dtype, made.precision["reduction"]) == ("bf16", "bf16")
    assert plan(request(strategy)).precision["reduction"] == "fp32"
    if strategy.startswith("zero"):
        assert engine_config(made)["communication_data_type"] == "bf16"
        assert "reduction bf16" in dict(plan_rows(made.as_dict()))["precision"]


def test_one_process_exchanges_nothing() -> None:
    made = plan(request("single"), world=1, reduce_dtype="bf16")
    assert made.precision["reduction"] == "fp32"


def test_where_gradients_cannot_travel_in_bf16() -> None:
    assert refusal(lambda: plan(request("ddp"), reduce_dtype="bf16", mixed_precision="fp16")) == (
        f"{SAID}: reduce_dtype: 'bf16': not supported beside mixed_precision fp16, whose loss "
        "scale looks for infinite gradients of fp16; take bf16"
    )
    sums = {"reduce_dtype": "bf16", "accumulation_steps": 4}
    assert refusal(lambda: plan(request("fsdp"), **sums)) == (
        f"{SAID}: reduce_dtype: 'bf16': under FSDP2 the 4 micro-batches of a step would add up in "
        "bf16; set sync_each_batch: true, with which they add up in float32, or leave it out"
    )
    assert plan(request("fsdp"), sync_each_batch=True, **sums).reduce_dtype == "bf16"
    assert plan(request("ddp"), **sums).reduce_dtype == "bf16", "it adds up before the exchange"


# The batch


@pytest.mark.parametrize(
    ("asks", "world", "settings", "batch"),
    [
        (None, 2, {"micro_batch_size": 8}, (8, 1, 16)),
        (None, 1, {"micro_batch_size": 8, "global_batch_size": 64}, (8, 8, 64)),
        (
            request(
                micro_batch_size=asked(4), global_batch_size=asked(32), accumulation_steps=asked(4)
            ),
            2,
            {},
            (4, 4, 32),
        ),
        # A micro-batch of null is an equal share.
        (None, 1, {"micro_batch_size": None, "global_batch_size": 64}, (64, 1, 64)),
        (None, 16, {"micro_batch_size": None, "global_batch_size": 64}, (4, 1, 64)),
        (None, 2, {"global_batch_size": 64, "micro_batch_size": None, "accumulation_steps": 4}, (8, 4, 64)),
    ],
)  # fmt: skip
def test_the_batch_is_a_product_and_leaves_open_what_follows_from_it(
    asks: Request | None, world: int, settings: dict[str, int], batch: tuple[int, int, int]
) -> None:
    made = plan(asks, world=world, **settings)
    found = (made.micro_batch_size, made.accumulation_steps, made.global_batch_size)
    assert found == batch


@pytest.mark.parametrize(
    ("batch", "micro", "steps", "told"),
    [
        (64, 8, None, "64: must be micro_batch_size 8 x accumulation_steps N"),
        (64, 8, 2, "64: must be micro_batch_size 8 x accumulation_steps 2"),
        (64, None, None, "64: must be micro_batch_size N x accumulation_steps 1"),
        (None, None, None, "must be micro_batch_size N x accumulation_steps 1"),
    ],
)
def test_a_batch_that_does_not_fit(
    batch: int | None, micro: int | None, steps: int | None, told: str
) -> None:
    given = {"global_batch_size": batch, "micro_batch_size": micro, "accumulation_steps": steps}
    rule = "x 3 (world_size / context_parallel); micro_batch_size: null takes an equal share"
    line = f"{SAID}: global_batch_size: {told} {rule}"
    assert refusal(lambda: plan(None, world=3, **given)) == line


def test_processes_that_share_rows_count_as_a_group() -> None:
    """In the batch, and in a rate that follows the batch."""
    settings: dict[str, Any] = {"micro_batch_size": 2, "global_batch_size": 16}
    rate = {"lr": 1e-3, "lr_scaling": "linear", "reference_batch_size": 8}
    made = plan(None, world=8, context_parallel=4, **settings, **rate)
    assert (made.world_size, made.context_parallel) == (8, 4)
    assert (made.accumulation_steps, made.global_batch_size) == (4, 16)
    assert made.lr == pytest.approx(2e-3)
    assert plan(None, world=8, context_parallel=4, micro_batch_size=2).global_batch_size == 4

    of_file = plan(request("fsdp", context_parallel=asked(4)), world=8, **settings)
    assert (of_file.context_parallel, of_file.accumulation_steps) == (4, 4)
    line = refusal(lambda: plan(None, world=8, context_parallel=3))
    assert line == f"{SAID}: context_parallel: 3: must divide the number of processes, 8"
    line = refusal(
        lambda: plan(None, world=8, context_parallel=4, micro_batch_size=3, global_batch_size=16)
    )
    assert line.startswith(f"{SAID}: global_batch_size: 16: must be micro_batch_size 3 x ")
    assert "x 2 (world_size / context_parallel); " in line
