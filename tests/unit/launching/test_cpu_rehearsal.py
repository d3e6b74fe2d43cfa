"""A rehearsal on the CPU: what of the launch file has no effect in it."""

from __future__ import annotations

import json

import pytest
from launch_texts import DDP, FSDP, ZERO, Write
from origins import origin
from plans import FOUR_GPUS, HOME, SAID, asked, plan, request

from trainer.launching.cpu_rehearsal import (
    rehearsal_changes,
    rehearsal_notices,
    rehearsal_precision,
)
from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.launching.files.deepspeed_file import read_deepspeed_file


def test_rehearsal_says_what_has_no_effect(write: Write) -> None:
    content = {
        "fp16": {"enabled": True, "initial_scale_power": 8},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "offload_param": {"device": "cpu", "pin_memory": True},
        },
    }
    request = read_deepspeed_file(write("ds.json", json.dumps(content, indent=1)))
    where = "ds.json:{} (zero_optimization.{}): no effect in a rehearsal: {}"
    assert rehearsal_notices(request) == (
        "ds.json:3 (fp16.enabled): DeepSpeed has no fp16 on a CPU: rehearsed in bf16",
        where.format(10, "offload_param.device", "already on the CPU"),
        where.format(11, "offload_param.pin_memory", "nothing is copied to a GPU"),
        where.format(8, "overlap_comm", "gloo has no streams to overlap on"),
    )
    assert rehearsal_changes(request) == ({}, {"zero_optimization": content["zero_optimization"]})
    assert [rehearsal_precision("zero3", "fp16"), rehearsal_precision("ddp", "fp16")] == [
        "bf16",
        "fp16",
    ]


def test_rehearsal_of_accelerates_own_keys(write: Write) -> None:
    zero = read_accelerate_file(
        write("a.yaml", f"{ZERO}  zero_stage: 2\n  offload_optimizer_device: cpu\n")
    )
    home = "a.yaml:5 (deepspeed_config.offload_optimizer_device)"
    assert rehearsal_notices(zero) == (f"{home}: no effect in a rehearsal: already on the CPU",)
    fsdp = read_accelerate_file(write("b.yaml", f"{FSDP}  fsdp_offload_params: true\n"))
    home = "b.yaml:5 (fsdp_config.fsdp_offload_params)"
    assert rehearsal_notices(fsdp) == (f"{home}: no effect in a rehearsal: already on the CPU",)
    assert rehearsal_notices(read_accelerate_file(write("c.yaml", DDP))) == ()


# Rehearsal


@pytest.mark.parametrize(
    ("strategy", "runs"), [("zero1", "bf16"), ("zero3", "bf16"), ("fsdp", "fp16"), ("ddp", "fp16")]
)
def test_fp16_in_a_rehearsal(strategy: str, runs: str) -> None:
    said = (
        (f"{HOME} (fp16.enabled): DeepSpeed has no fp16 on a CPU: rehearsed in bf16",)
        if runs == "bf16"
        else ()
    )
    asks = request(strategy, mixed_precision=asked("fp16", "fp16.enabled"))
    made = plan(asks)
    assert (made.mixed_precision, made.notices) == (runs, said)
    assert plan(asks, mixed_precision="fp16").notices == said, "one line, also with two homes"
    on_gpus = plan(asks, machine=FOUR_GPUS)
    assert (on_gpus.mixed_precision, on_gpus.notices) == ("fp16", ())


def test_fp16_of_the_training_config_in_a_rehearsal() -> None:
    made = plan(request("zero2"), mixed_precision="fp16")
    assert made.mixed_precision == "bf16"
    assert made.notices == (
        f"{SAID} (mixed_precision): DeepSpeed has no fp16 on a CPU: rehearsed in bf16",
    )


def test_what_has_no_effect_in_a_rehearsal() -> None:
    zero = {"stage": 3, "overlap_comm": True}
    origins = {
        "deepspeed.zero_optimization.overlap_comm": origin(
            f"{HOME} (zero_optimization.overlap_comm)"
        )
    }
    asks = request(
        "zero3", deepspeed={"zero_optimization": zero, "fp16": {"loss_scale": 0}}, origins=origins
    )
    made = plan(asks)
    assert made.deepspeed == {"zero_optimization": zero}
    assert made.notices == (
        f"{HOME} (zero_optimization.overlap_comm): no effect in a rehearsal: gloo has no streams to overlap on",
    )
    assert plan(asks, machine=FOUR_GPUS).notices == ()


def test_what_gpus_alone_can_do_is_left_out_of_a_rehearsal() -> None:
    zero = {
        "stage": 3,
        "zero_quantized_weights": True,
        "zero_quantized_gradients": True,
        "zero_hpz_partition_size": 2,
        "offload_param": {"device": "nvme", "nvme_path": "/nvme"},
    }
    origins = {
        f"deepspeed.zero_optimization.{key}": origin(f"{HOME} ({key})")
        for key in (*zero, "offload_param.device")
    }
    asks = request("zero3", deepspeed={"zero_optimization": zero}, origins=origins)
    made = plan(asks)
    assert made.deepspeed == {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}}
    quantized = (
        "left out of a rehearsal: DeepSpeed quantizes on GPUs only; the numbers are those without"
    )
    assert made.notices == (
        f"{HOME} (zero_quantized_weights): {quantized}",
        f"{HOME} (zero_quantized_gradients): {quantized}",
        f"{HOME} (offload_param.device): left out of a rehearsal: the parameters stay in memory",
    )
    on_gpus = plan(asks, machine=FOUR_GPUS)
    assert (on_gpus.deepspeed, on_gpus.notices) == ({"zero_optimization": zero}, ())
