"""DeepSpeed JSONs, inline or in a file of their own: what is read, and every refusal in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from accelerate.utils import DeepSpeedPlugin
from deepspeed.runtime.config import DeepSpeedConfig
from launch_texts import DDP, FULL, ZERO, Write, complaint
from origins import sourced

from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.launching.files.deepspeed_file import INLINE, read_deepspeed_file


def test_inline_zero(write: Write) -> None:
    text = (
        f"{ZERO}  zero_stage: 3\n  gradient_accumulation_steps: auto\n  gradient_clipping: 1\n"
        "  offload_optimizer_device: cpu\n  offload_param_device: none\n"
        "  zero3_save_16bit_model: true\n"
    )
    request = read_accelerate_file(write("a.yaml", text))
    stage = "a.yaml:4 (deepspeed_config.zero_stage)"
    assert (request.strategy, str(request.strategy_origin)) == ("zero3", stage)
    assert request.settings.get("accumulation_steps") is None
    assert request.settings.get("max_grad_norm") == sourced(
        1, "a.yaml:6 (deepspeed_config.gradient_clipping)"
    )
    assert request.deepspeed == {
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu"},
            "stage3_gather_16bit_weights_on_model_save": True,
        }
    }


def test_deepspeed_json(write: Write) -> None:
    request = read_deepspeed_file(write("ds.json", json.dumps(FULL, indent=1)))
    assert (request.strategy, request.world_size) == ("zero2", None)
    assert not request.settings.keys() & {"mixed_precision", "micro_batch_size", "max_grad_norm"}
    assert request.settings["global_batch_size"] == sourced(64, "ds.json:35 (train_batch_size)")
    steps = sourced(2, "ds.json:32 (gradient_accumulation_steps)")
    assert request.settings["accumulation_steps"] == steps
    names = [request.settings[key].value for key in ("optimizer", "schedule")]
    assert names == ["adamw", "constant"]
    assert request.deepspeed == {
        "zero_optimization": {"stage": 2, "overlap_comm": True, "allgather_bucket_size": 2e8},
        "fp16": {"loss_scale": 0, "min_loss_scale": 1},
        "bf16": {"enabled": False},
    }


@pytest.mark.parametrize(
    ("sections", "precision"),
    [
        ({"bf16": {"enabled": "auto"}}, None),
        ({"bfloat16": {"enabled": True}}, "bf16"),
        ({"fp16": {"enabled": True}, "bf16": {"enabled": False}}, "fp16"),
        ({"fp16": {"enabled": False}}, "no"),
        ({"fp16": {"enabled": "auto"}, "bf16": {"enabled": False}}, None),
    ],
)
def test_precision_of_the_json(
    write: Write, sections: dict[str, Any], precision: str | None
) -> None:
    text = json.dumps({"zero_optimization": {"stage": 1}, **sections})
    request = read_deepspeed_file(write("ds.json", text))
    found = request.settings.get("mixed_precision")
    assert (found and found.value) == precision


def test_stage_0_is_ddp(write: Write) -> None:
    content = {**FULL, "zero_optimization": {"stage": 0, "overlap_comm": True}}
    request = read_deepspeed_file(write("ds.json", json.dumps(content)))
    assert (request.strategy, request.deepspeed) == ("ddp", {})
    assert request.settings.keys() >= {"global_batch_size", "optimizer"}
    assert request.notices == ("ds.json:1: DeepSpeed shards nothing in stage 0: runs as DDP",)
    request = read_accelerate_file(write("a.yaml", f"{ZERO}  zero_stage: 0\n"))
    assert request.strategy == "ddp"


def test_deepspeed_is_imported_for_its_own_files_only(tmp_path: Path) -> None:
    """Its import takes a second. It chooses the device of the process, which ``use_cpu`` names."""
    (tmp_path / "ddp.yaml").write_text(DDP)
    (tmp_path / "zero.yaml").write_text(f"use_cpu: true\n{ZERO}  zero_stage: 2\n")
    code = (
        "import os, sys, torch\n"
        "from trainer.launching.files.accelerate_file import read_accelerate_file as read\n"
        "read('ddp.yaml')\nassert 'deepspeed' not in sys.modules\n"
        "torch.cuda.device_count = lambda: 2\ntorch.cuda.is_available = lambda: True\n"
        "os.environ.pop('DS_ACCELERATOR', None)\nread('zero.yaml')\n"
        "from deepspeed.accelerator import get_accelerator\n"
        "assert get_accelerator()._name == 'cpu'\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert done.stdout == "", "DeepSpeed logs to standard output"


def test_older_names_of_offloads(write: Write) -> None:
    zero = {"stage": 3, "cpu_offload": True, "cpu_offload_param": True}
    request = read_deepspeed_file(write("ds.json", json.dumps({"zero_optimization": zero})))
    moved = {"device": "cpu"}
    assert request.deepspeed["zero_optimization"] == {
        "stage": 3,
        "offload_optimizer": moved,
        "offload_param": moved,
    }


def test_comments_null_and_settings_that_are_off_pass(write: Write) -> None:
    content = {
        "_comment": "from a blog",
        "zero_optimization": {
            "stage": 2,
            "_note": 1,
            "overlap_comm": "auto",
            "offload_param": {"device": "none"},
            "zero_quantized_weights": False,
            "zero_hpz_partition_size": 1,
        },
        "autotuning": {"enabled": False},
        "sequence_parallel_size": 1,
        "flops_profiler": {"enabled": False, "module_depth": -1},
        "steps_per_print": "inf",
        "gradient_accumulation_steps": None,
        "gradient_predivide_factor": 1.0,
    }
    request = read_deepspeed_file(write("ds.json", json.dumps(content)))
    assert request.deepspeed == {
        "zero_optimization": {
            "stage": 2,
            "offload_param": {"device": "none"},
            "zero_quantized_weights": False,
            "zero_hpz_partition_size": 1,
        },
        "flops_profiler": {"enabled": False, "module_depth": -1},
        "gradient_predivide_factor": 1.0,
    }
    assert (request.settings.get("accumulation_steps"), request.notices) == (None, ())
    DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **request.deepspeed})


ABSENT = "not supported by samecurve; remove it"
# One line for each rule: the key, its value, and the message.
JSON_MISTAKES: list[tuple[str, Any, str]] = [
    ("gradient_cliping", 1.0, "unknown key; did you mean 'gradient_clipping'?"),
    ("log", {}, "unknown key"),
    ("zero_optimization.offload_optimizer.devise", "cpu", "unknown key"),
    ("optimizer.params.learning_rate", 1, "unknown key"),
    ("bf16.loss_scale", 0, "unknown key"),
    ("gradient_clipping", "1.0", "must be a valid number"),
    ("zero_optimization.stage", "two", "must be 0, 1, 2 or 3"),
    ("zero_optimization.offload_optimizer.device", "nvme", "must be 'none' or 'cpu'"),
    ("zero_optimization.offload_optimizer.ratio", 0.3, "must be 1"),
    ("zero_optimization.compute_grad_norm", False, "must be True"),
    ("zero_optimization.mics_shard_size", 8, "unknown key"),
    (
        "zero_optimization.offload_param.device",
        "cpu",
        "'cpu': has no effect in stage 2; remove it, or set stage 3",
    ),
    ("torch_autocast", {"enabled": True}, ABSENT),
    ("gradient_allreduce_op", "sum", "must be 'mean'"),
    ("managed_gradient_accumulation", False, "must be True"),
    ("bf16.bf16_master_weights_and_grads", True, "must be False"),
    ("data_types.param_dtype", "bf16", "must be null"),
]


@pytest.mark.parametrize(
    ("name", "value", "rule"), JSON_MISTAKES, ids=[name for name, _, _ in JSON_MISTAKES]
)
def test_a_mistake_in_json_is_one_line(write: Write, name: str, value: Any, rule: str) -> None:
    content: dict[str, Any] = {
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "AdamW", "params": {}},
    }
    *path, key = name.split(".")
    section = content
    for part in path:
        section = section.setdefault(part, {})
    section[key] = value
    text = json.dumps(content, indent=1)
    number = 1 + [f'"{key}"' in line for line in text.splitlines()].index(True)
    line = complaint(lambda: read_deepspeed_file(write("ds.json", text)))
    assert line.startswith(f"ds.json:{number}: {name}: ") and rule in line, line


OTHER_MISTAKES = [
    ('{"communication_data_type": "bf16"}', "communication_data_type: 'bf16': must be 'fp32'"),
    (
        '{"fp16": {"enabled": true}, "bf16": {"enabled": true}}',
        "bf16.enabled: 'bf16': disagrees with 'fp16' at ds.json:1 (fp16.enabled); keep one of the two",
    ),
    ('{"optimizer": "AdamW"}', "optimizer: 'AdamW': must be an object"),
    ('{"optimizer": {"params": {}}}', "optimizer.type: is required"),
    ('{"train_batch_size": 1,}', "ds.json:1: the file cannot be read"),
    ("", "ds.json:1: the file cannot be read"),
]


@pytest.mark.parametrize(("text", "rule"), OTHER_MISTAKES, ids=[text for text, _ in OTHER_MISTAKES])
def test_other_mistakes_in_json(write: Write, text: str, rule: str) -> None:
    line = complaint(lambda: read_deepspeed_file(write("ds.json", text)))
    assert rule in line and "\n" not in line


INLINE_MISTAKES = [
    ("zero_stage: 4", "a.yaml:4: deepspeed_config.zero_stage: 4: must be 0, 1, 2 or 3"),
    (
        "gradient_clipping: 1.0",
        "a.yaml:1: distributed_type: needs deepspeed_config.zero_stage: accelerate takes 2 without a word",
    ),
    (
        "zero_stage: 2\n  offload_optimizer_device: nvme",
        "a.yaml:5: deepspeed_config.offload_optimizer_device: 'nvme': must be 'none' or 'cpu'",
    ),
    (
        "zero_stage: 1\n  offload_param_device: cpu",
        "a.yaml:5: deepspeed_config.offload_param_device: 'cpu': has no effect in stage 1; remove it, or set stage 3",
    ),
]


@pytest.mark.parametrize(
    ("text", "line"), INLINE_MISTAKES, ids=[line for _, line in INLINE_MISTAKES]
)
def test_a_mistake_in_the_section_is_one_line(write: Write, text: str, line: str) -> None:
    assert complaint(lambda: read_accelerate_file(write("a.yaml", f"{ZERO}  {text}"))) == line


def test_both_ways_beside_each_other_is_what_accelerate_refuses() -> None:
    """Keys that stand for a key of the JSON are those that Accelerate's own check names."""
    constants = DeepSpeedPlugin._deepspeed_config_checks.__code__.co_consts
    names = set()
    for constant in constants:
        for name in constant if isinstance(constant, tuple) else (constant,):
            if str(name).startswith("ACCELERATE_"):
                names.add(name.removeprefix("ACCELERATE_").replace("DEEPSPEED_", "").lower())
    others = {"config_ds_fields", "mixed_precision", "offload_optimizer_nvme_path"}
    assert names - others == set(INLINE)
