"""Keys of launch files that have no effect: said, in few lines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from deepspeed.runtime.config import DeepSpeedConfig
from launch_texts import DDP, FSDP, ZERO, Write, complaint

from trainer.commands.launch_files import read_launch_file
from trainer.launching.cpu_rehearsal import rehearsal_changes, rehearsal_notices
from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.launching.files.deepspeed_file import read_deepspeed_file


def test_sections_for_what_does_not_run_are_said(write: Write) -> None:
    text = (
        f"{DDP}mpirun_config:\n  mpirun_hostfile: hosts\nmegatron_lm_config:\n  megatron_lm_tp_degree: 2\n"
        "fp8_config:\n  backend: TE\n"
    )
    assert read_accelerate_file(write("a.yaml", text)).notices == (
        "a.yaml:8: fp8_config: no effect under MULTI_GPU",
        "a.yaml:6: megatron_lm_config: no effect under MULTI_GPU",
        "a.yaml:4: mpirun_config: no effect under MULTI_GPU",
    )


def test_keys_of_another_wrap_policy_share_one_line(write: Write) -> None:
    text = f"{FSDP}  fsdp_transformer_layer_cls_to_wrap: Block\n  fsdp_min_num_params: 1000\n"
    request = read_accelerate_file(write("a.yaml", text))
    assert request.notices == (
        "a.yaml:5: no effect under fsdp_auto_wrap_policy NO_WRAP: "
        "fsdp_transformer_layer_cls_to_wrap, fsdp_min_num_params",
    )
    assert request.fsdp["transformer_cls_names_to_wrap"] is None


def test_inline_settings_of_stage_3_without_effect(write: Write) -> None:
    text = f"{ZERO}  zero_stage: 3\n  zero3_init_flag: true\n  zero3_save_16bit_model: true\n"
    assert read_accelerate_file(write("a.yaml", text)).notices == (
        "a.yaml:5: deepspeed_config.zero3_init_flag: no effect: "
        "the model is whole in host memory if build_model gives it values, never on the meta device",
        "a.yaml:6: deepspeed_config.zero3_save_16bit_model: no effect: "
        "the model is written in full precision (float32)",
    )


def test_what_a_json_may_hold_without_effect(write: Write) -> None:
    content = {
        "_comment": "from a blog",
        "zero_optimization": {
            "stage": 2,
            "_note": 1,
            "overlap_comm": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
            "stage3_prefetch_bucket_size": "auto",
            "zero_quantized_gradients": True,
            "zero_quantized_weights": False,
        },
        "activation_checkpointing": {"partition_activations": True},
        "checkpoint": {"use_node_local_storage": True},
        "flops_profiler": {
            "enabled": False,
            "profile_step": 1,
            "module_depth": -1,
            "top_modules": 1,
            "detailed": True,
        },
        "steps_per_print": "inf",
        "gradient_accumulation_steps": None,
        "train_micro_batch_size_per_gpu": None,
    }
    request = read_deepspeed_file(write("ds.json", json.dumps(content, indent=1)))
    assert request.notices == (
        "ds.json:12: activation_checkpointing: no effect unless the model itself calls deepspeed.checkpointing",
        "ds.json:15: checkpoint: no effect on checkpoints, which are not DeepSpeed's",
        "ds.json:7: no effect in stage 2: stage3_gather_16bit_weights_on_model_save, zero_quantized_gradients",
    )
    left = request.deepspeed["zero_optimization"]
    assert left == {key: left[key] for key in left if key[0] != "_" and left[key] != "auto"}
    assert request.deepspeed["flops_profiler"] == content["flops_profiler"]
    assert "steps_per_print" not in request.deepspeed, "Accelerate sets it"
    assert (request.accumulation_steps, request.micro_batch_size) == (None, None)
    DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **request.deepspeed})
    whole = '{"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": true}}'
    assert read_deepspeed_file(write("b.json", whole)).notices == (
        "b.json:1: zero_optimization.stage3_gather_16bit_weights_on_model_save: no effect: "
        "the model is written in full precision (float32)",
    )


def test_reading_straight_to_a_gpu_is_no_matter_of_a_rehearsal(write: Write) -> None:
    text = '{"zero_optimization": {"stage": 3}, "aio": {"use_gds": true, "block_size": 4096}}'
    request = read_deepspeed_file(write("ds.json", text))
    assert request.deepspeed["aio"] == {"use_gds": True, "block_size": 4096}
    assert rehearsal_changes(request)[1]["aio"] == {"block_size": 4096}


def test_older_names_of_offloads(write: Write) -> None:
    zero = {
        "stage": 3,
        "cpu_offload": True,
        "cpu_offload_param": True,
        "cpu_offload_use_pin_memory": True,
    }
    text = json.dumps({"zero_optimization": zero})
    request = read_deepspeed_file(write("ds.json", text))
    moved = {"device": "cpu", "pin_memory": True}
    assert request.deepspeed == {
        "zero_optimization": {"stage": 3, "offload_optimizer": moved, "offload_param": moved}
    }
    assert rehearsal_notices(request)[0] == (
        "ds.json:1 (zero_optimization.cpu_offload): no effect in a rehearsal: already on the CPU"
    )


@pytest.mark.parametrize(
    "content",
    [
        {
            "transformer_layer_cls_to_wrap": ["GPT2Block"],
            "backward_prefetch": "backward_pre",
            "xla": False,
        },
        {"fsdp": "shard_grad_op offload auto_wrap", "fsdp_config": {"min_num_params": 1000}},
        {"fsdp_min_num_params": 1000},
    ],
)
def test_a_file_for_transformers_own_trainer(write: Write, content: dict[str, Any]) -> None:
    path = write("fsdp.json", json.dumps(content))
    line = (
        "fsdp.json: this is a file for transformers' own Trainer; write an accelerate YAML, "
        "{distributed_type: FSDP, fsdp_config: {fsdp_version: 2, ...}}, with these keys under fsdp_config and fsdp_ in "
        "front, fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP for layers and SIZE_BASED_WRAP for min_num_params, "
        "fsdp_offload_params: true for the word offload, fsdp_reshard_after_forward: false for shard_grad_op"
    )
    for read in (read_deepspeed_file, read_accelerate_file, read_launch_file):
        assert complaint(lambda read=read: read(path)) == line
