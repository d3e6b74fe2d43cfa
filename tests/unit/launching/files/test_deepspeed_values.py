"""The values of a DeepSpeed JSON: every rule with its one line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from deepspeed.runtime.config import DeepSpeedConfig
from launch_texts import Write, Z, complaint

from trainer.launching.files.deepspeed_file import read_deepspeed_file

FULL_PRECISION = "weights and gradients are kept in full precision here"
# One line for each rule: what is in the file, and the message.
MISTAKES = [
    ("gradient_cliping", 1.0, "unknown key; did you mean 'gradient_clipping'?"),
    ("stage", 2, "unknown key; it belongs under zero_optimization"),
    ("log", {}, "unknown key; DeepSpeed's JSON has none of this name; remove it"),
    (
        "checkpoint.parallel_write.pipeline_stages",
        True,
        "unknown key; did you mean 'pipeline_stage'?",
    ),
    ("bf16.loss_scale", 0, "unknown key; bf16 needs no loss scale; remove it"),
    (
        "compile.backend",
        "inductor",
        "unknown key; DeepSpeed has none of this name; "
        "write compile: true in the training config, or dynamo_config in an accelerate YAML",
    ),
    ("train_batch_size", 0, "must be at least 1"),
    ("gradient_accumulation_steps", 2.0, "must be a whole number; write 2"),
    ("wall_clock_breakdown", 1, "must be true or false"),
    ("zero_optimization.reduce_bucket_size", -5, "must be greater than 0"),
    (
        "zero_optimization.offload_optimizer.device",
        "gpu",
        "must be one of 'none', 'cpu', 'nvme'; did you mean 'cpu'?",
    ),
    ("aio", 3, "must be a mapping"),
    ("vocabulary_size", "1024", "is text; remove the quotes"),
    ("dump_state", "auto", '"auto" is not resolved here; write a value, or remove the key'),
    ("torch_autocast", {"enabled": True}, "not supported by samecurve; remove it"),
    (
        "zero_optimization.mics_shard_size",
        8,
        "DeepSpeed: MiCS ZeRO-3 sharding has been removed; "
        "'zero_optimization.mics_shard_size' is no longer supported; remove it",
    ),
    (
        "gradient_allreduce_op",
        "sum",
        "the gradient here is the mean over the global batch; remove it",
    ),
    (
        "managed_gradient_accumulation",
        False,
        "gradients are accumulated by this program; remove it",
    ),
    (
        "zero_optimization.offload_optimizer.ratio",
        0.3,
        "needs DeepSpeed's own Adam, and torch's steps here; remove it",
    ),
]


def with_value(name: str, value: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"zero_optimization": {"stage": 2}}
    *path, key = name.split(".")
    section = content
    for part in path:
        section = section.setdefault(part, {})
    section[key] = value
    return content


@pytest.mark.parametrize(
    ("name", "value", "rule"), MISTAKES, ids=[f"{name} {value}" for name, value, _ in MISTAKES]
)
def test_a_mistake_is_one_line(write: Write, name: str, value: Any, rule: str) -> None:
    text = json.dumps(with_value(name, value))
    line = complaint(lambda: read_deepspeed_file(write("ds.json", text)))
    shown = repr(value) if isinstance(value, str | dict) else json.dumps(value)
    assert line == f"ds.json:1: {name}: {shown}: {rule}"


def test_comments_null_and_what_is_switched_off_pass(write: Write) -> None:
    content = {
        "_comment": "from a blog",
        "zero_optimization": {
            "stage": 2,
            "_note": 1,
            "overlap_comm": "auto",
            "mics_shard_size": -1,
        },
        "autotuning": {"enabled": False},
        "amp": {"enabled": False},
        "sequence_parallel_size": 1,
        "flops_profiler": {"enabled": False, "module_depth": -1},
        "steps_per_print": "inf",
        "gradient_accumulation_steps": None,
    }
    request = read_deepspeed_file(write("ds.json", json.dumps(content)))
    assert request.deepspeed == {
        "zero_optimization": {"stage": 2},
        "flops_profiler": {"enabled": False, "module_depth": -1},
    }
    assert (request.accumulation_steps, request.notices) == (None, ())
    DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **request.deepspeed})


def test_settings_that_are_not_used_share_one_line(write: Write) -> None:
    zero = {
        "stage": 2,
        "stage3_gather_16bit_weights_on_model_save": True,
        "stage3_prefetch_bucket_size": "auto",
        "zero_quantized_gradients": True,
        "zero_quantized_weights": False,
    }
    content = {
        "zero_optimization": zero,
        "activation_checkpointing": {"partition_activations": True},
        "checkpoint": {"use_node_local_storage": True},
    }
    assert read_deepspeed_file(write("a.json", json.dumps(content, indent=1))).notices == (
        "a.json:9: not used by samecurve: activation_checkpointing, checkpoint",
        "a.json:4: no effect in stage 2: stage3_gather_16bit_weights_on_model_save, "
        "zero_quantized_gradients",
    )
    text = json.dumps(
        {"zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True}}
    )
    assert read_deepspeed_file(write("b.json", text)).notices == (
        "b.json:1: not used by samecurve: stage3_gather_16bit_weights_on_model_save",
    )


def test_text_that_looks_like_a_number_may_be_text(write: Write) -> None:
    text = f'{{{Z}, "wandb": {{"enabled": true, "project": "7"}}}}'
    wandb = read_deepspeed_file(write("ds.json", text)).deepspeed["wandb"]
    assert wandb == {"enabled": True, "project": "7"}
