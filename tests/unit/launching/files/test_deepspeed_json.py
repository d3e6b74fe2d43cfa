"""DeepSpeed JSONs, inline or in a file of their own: what is read."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from accelerate.utils import DeepSpeedPlugin
from launch_texts import BY_FILE, DDP, FULL, ZERO, Write, complaint, flag
from origins import sourced

from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.launching.files.deepspeed_file import read_deepspeed_file
from trainer.launching.files.tables import table


def test_inline_zero(write: Write) -> None:
    text = (
        f"{ZERO}  zero_stage: 3\n  gradient_accumulation_steps: 4\n  gradient_clipping: 1\n"
        "  offload_optimizer_device: cpu\n  offload_param_device: none\n  zero3_save_16bit_model: true\n"
    )
    request = read_accelerate_file(write("a.yaml", text))
    assert (request.strategy, str(request.strategy_origin)) == (
        "zero3",
        "a.yaml:4 (deepspeed_config.zero_stage)",
    )
    assert request.accumulation_steps is not None
    assert request.accumulation_steps.value == 4
    assert request.max_grad_norm == sourced(1.0, "a.yaml:6 (deepspeed_config.gradient_clipping)")
    assert request.deepspeed == {
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    }


def test_inline_auto_is_open(write: Write) -> None:
    text = (
        f"{ZERO}  zero_stage: 1\n  gradient_accumulation_steps: auto\n  gradient_clipping: auto\n"
    )
    request = read_accelerate_file(write("a.yaml", text))
    assert (request.accumulation_steps, request.max_grad_norm) == (None, None)


def test_flags_of_stage_3_are_said_in_another(write: Write) -> None:
    text = f"{ZERO}  zero_stage: 2\n  zero3_init_flag: true\n  zero3_save_16bit_model: true\n"
    built, saved = read_accelerate_file(write("a.yaml", text)).notices
    assert saved == "a.yaml:6: no effect in stage 2: zero3_save_16bit_model"
    assert built.startswith(
        "a.yaml:5: deepspeed_config.zero3_init_flag: no effect: the model is whole in host memory"
    )


def test_deepspeed_json(write: Write) -> None:
    request = read_deepspeed_file(write("ds.json", json.dumps(FULL, indent=1)))
    assert request.strategy == "zero2"
    assert (request.world_size, request.mixed_precision) == (None, None)
    assert (request.micro_batch_size, request.max_grad_norm) == (None, None)
    assert request.global_batch_size is not None
    assert request.global_batch_size.value == 64
    assert request.accumulation_steps is not None
    assert request.accumulation_steps.value == 2
    assert request.optimizer is not None
    assert (request.optimizer.name, request.optimizer.typed.value) == ("adamw", "AdamW")
    assert {key: given.value for key, given in request.optimizer.values.items()} == {
        "betas": [0.9, 0.95]
    }
    assert {key: given.value for key, given in request.optimizer.defaults.items()} == {
        "eps": 1e-8,
        "weight_decay": 0.0,
    }
    assert request.scheduler is not None
    assert (request.scheduler.name, request.scheduler.values) == ("constant", {})
    assert {key: given.value for key, given in request.scheduler.defaults.items()} == {
        "warmup_type": "log"
    }
    assert request.deepspeed == {
        "zero_optimization": {"stage": 2, "overlap_comm": True, "allgather_bucket_size": 2e8},
        "fp16": {"loss_scale": 0, "min_loss_scale": 1},
    }


@pytest.mark.parametrize(
    ("sections", "precision"),
    [
        ({}, None),
        ({"bf16": {"enabled": "auto"}}, None),
        ({"bf16": {"enabled": True}}, "bf16"),
        ({"bfloat16": {"enabled": True}}, "bf16"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": False}}, "fp16"),
        ({"fp16": {"enabled": False}}, "no"),
    ],
)
def test_precision_of_the_json(
    write: Write, sections: dict[str, Any], precision: str | None
) -> None:
    text = json.dumps({"zero_optimization": {"stage": 1}, **sections})
    request = read_deepspeed_file(write("ds.json", text))
    assert (request.mixed_precision and request.mixed_precision.value) == precision
    assert request.deepspeed == {"zero_optimization": {"stage": 1}}


ABSENT = "ds.json: no zero_optimization.stage, which DeepSpeed takes as 0;"


@pytest.mark.parametrize(
    ("sections", "said", "idle"),
    [
        ({"prescale_gradients": True}, ABSENT, "prescale_gradients"),
        ({"zero_optimization": {"overlap_comm": True}}, ABSENT, "overlap_comm"),
        (
            {
                "zero_optimization": {
                    "stage": 0,
                    "cpu_offload": True,
                    "reduce_bucket_size": "auto",
                },
                "fp16": {"enabled": True, "loss_scale": 128},
                "tensorboard": {"enabled": True},
                "csv_monitor": {"enabled": False},
                "communication_data_type": "fp32",
                "prescale_gradients": False,
            },
            "ds.json:1: zero_optimization.stage:",
            "offload_optimizer, loss_scale, tensorboard",
        ),
    ],
)
def test_stage_0_is_ddp(write: Write, sections: dict[str, Any], said: str, idle: str) -> None:
    """What counts under DDP as well is read as in every JSON, and what DeepSpeed's engine alone
    reads is said.
    """
    shared = {key: value for key, value in FULL.items() if key != "zero_optimization"}
    request = read_deepspeed_file(write("ds.json", json.dumps(shared | sections)))
    assert (request.strategy, request.stage_0, request.deepspeed) == ("ddp", True, {})
    assert request.global_batch_size is not None
    assert request.global_batch_size.value == 64
    assert request.optimizer is not None
    assert request.optimizer.name == "adamw"
    assert request.notices == (
        f"{said} DeepSpeed shards nothing in stage 0: runs as DDP",
        f"ds.json:1: no effect in stage 0, which runs as DDP: {idle}",
    )


def test_stage_0_in_an_accelerate_file(write: Write) -> None:
    text = f"{ZERO}  zero_stage: 0\n  gradient_clipping: 1\n  offload_param_device: cpu\n"
    request = read_accelerate_file(write("a.yaml", text))
    assert (request.strategy, request.stage_0, request.deepspeed) == ("ddp", True, {})
    assert request.max_grad_norm == sourced(1.0, "a.yaml:5 (deepspeed_config.gradient_clipping)")
    assert request.notices == (
        "a.yaml:4: deepspeed_config.zero_stage: DeepSpeed shards nothing in stage 0: runs as DDP",
        "a.yaml:6: no effect in stage 0, which runs as DDP: offload_param_device",
    )


def test_json_named_in_the_yaml(write: Write) -> None:
    write("ds.json", json.dumps(FULL))
    request = read_accelerate_file(write("a.yaml", f"{BY_FILE}  zero3_init_flag: false\n"))
    assert (request.strategy, str(request.strategy_origin)) == (
        "zero2",
        "ds.json:1 (zero_optimization.stage)",
    )
    assert request.world_size == sourced(2, "a.yaml:2 (num_processes)")
    assert request.files == ("a.yaml", "ds.json")


def test_flags_fill_what_the_json_leaves_open(write: Write) -> None:
    write("ds.json", json.dumps(FULL))
    path = write("a.yaml", BY_FILE)
    open_values = flag(0.5, "gradient_clipping") | flag("bf16", "mixed_precision")
    request = read_accelerate_file(path, overrides=open_values)
    assert request.max_grad_norm == sourced(0.5, "command line (--gradient_clipping)")
    assert request.mixed_precision == sourced("bf16", "command line (--mixed_precision)")
    assert complaint(
        lambda: read_accelerate_file(path, overrides=flag(3, "gradient_accumulation_steps"))
    ) == (
        "command line: --gradient_accumulation_steps: 3: disagrees with 2 at ds.json:1 (gradient_accumulation_steps); "
        "keep one of them"
    )


def test_both_ways_beside_each_other_is_what_accelerate_refuses() -> None:
    """What stands for a key of the JSON is just what Accelerate's own check names."""
    constants = DeepSpeedPlugin._deepspeed_config_checks.__code__.co_consts
    names = {
        n
        for c in constants
        for n in (c if isinstance(c, tuple) else (c,))
        if str(n).startswith("ACCELERATE_")
    }
    refused = {name.replace("ACCELERATE_", "").replace("DEEPSPEED_", "").lower() for name in names}
    assert refused - {"config_ds_fields"} == {"mixed_precision", *table("deepspeed")["inline"]}


@pytest.mark.parametrize(
    "text", [DDP, "num_processes: 2\nmixed_precision: bf16", "fsdp_config: {fsdp_version: 2}"]
)
def test_an_accelerate_file_that_is_given_as_a_json_of_deepspeed(text: str, write: Write) -> None:
    path = write("a.yaml", text)
    assert complaint(lambda: read_deepspeed_file(path)) == (
        "a.yaml: this is an accelerate config: give it to accelerate launch, or with --accel_config"
    )


def test_json_is_checked_without_deepspeed(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.config", None)
    assert read_deepspeed_file(write("ds.json", json.dumps(FULL))).strategy == "zero2"
    assert read_accelerate_file(write("a.yaml", BY_FILE)).strategy == "zero2"
