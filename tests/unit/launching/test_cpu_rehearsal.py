"""A rehearsal on CPUs: what it runs otherwise than the launch file asks for."""

from __future__ import annotations

import json

import pytest
from launch_texts import FSDP, Write
from origins import origin
from plans import FOUR_GPUS, HOME, asked, plan, request

from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.launching.files.deepspeed_file import read_deepspeed_file


def test_fp16_and_reads_from_disk_are_left_out(write: Write) -> None:
    content = {
        "fp16": {"enabled": True, "initial_scale_power": 8},
        "zero_optimization": {
            "stage": 3,
            "overlap_comm": True,
            "offload_param": {"device": "cpu", "pin_memory": True},
        },
        "aio": {"use_gds": True},
    }
    made = plan(read_deepspeed_file(write("ds.json", json.dumps(content, indent=1))))
    assert made.deepspeed == {"zero_optimization": content["zero_optimization"]}
    assert (made.mixed_precision, made.notices) == (
        "bf16",
        ("ds.json:3 (fp16.enabled): DeepSpeed has no fp16 on a CPU: rehearsed in bf16",),
    )


def test_the_offload_of_fsdp_is_left_out(write: Write) -> None:
    fsdp = read_accelerate_file(write("b.yaml", f"{FSDP}  fsdp_offload_params: true\n"))
    assert fsdp.fsdp["cpu_offload"] is True
    assert plan(fsdp).fsdp == {**fsdp.fsdp, "cpu_offload": False}


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
    on_gpus = plan(asks, machine=FOUR_GPUS)
    assert (on_gpus.mixed_precision, on_gpus.notices) == ("fp16", ())
    of_config = plan(request(strategy), mixed_precision="fp16")
    assert (of_config.mixed_precision, len(of_config.notices)) == (runs, len(said))


def test_what_gpus_alone_can_do_is_left_out_of_a_rehearsal() -> None:
    zero = {
        "stage": 3,
        "zero_quantized_weights": True,
        "zero_quantized_gradients": True,
        "zero_hpz_partition_size": 2,
        "offload_param": {"device": "nvme", "nvme_path": "/nvme"},
    }
    origins = {f"deepspeed.zero_optimization.{key}": origin(f"{HOME} ({key})") for key in zero}
    asks = request("zero3", deepspeed={"zero_optimization": zero}, origins=origins)
    made = plan(asks)
    assert made.deepspeed == {"zero_optimization": {"stage": 3, "zero_hpz_partition_size": 2}}
    left_out = "left out of a rehearsal: DeepSpeed has it on GPUs only"
    assert made.notices == (
        f"{HOME} (zero_quantized_weights): {left_out}",
        f"{HOME} (zero_quantized_gradients): {left_out}",
        f"{HOME} (offload_param): {left_out}",
    )
    on_gpus = plan(asks, machine=FOUR_GPUS)
    assert (on_gpus.deepspeed, on_gpus.notices) == ({"zero_optimization": zero}, ())
