"""Files of another kind, given where a launch file is expected."""

from __future__ import annotations

import json
from typing import Any

import pytest
from launch_texts import DDP, Write, complaint

from trainer.commands.launch_files import read_launch_file
from trainer.launching.files.accelerate_file import read_accelerate_file
from trainer.launching.files.deepspeed_file import read_deepspeed_file


@pytest.mark.parametrize(
    "text", [DDP, "num_processes: 2\nmixed_precision: bf16", "fsdp_config: {fsdp_version: 2}"]
)
def test_an_accelerate_config_given_with_deepspeed(text: str, write: Write) -> None:
    path = write("a.yaml", text)
    assert complaint(lambda: read_deepspeed_file(path)) == (
        "a.yaml: this is an accelerate config: give it to accelerate launch, or with --accel_config"
    )


@pytest.mark.parametrize(
    "text",
    [
        "zero_optimization: {stage: 2}",
        '{"train_batch_size": "auto", "optimizer": {"type": "Adam"}, "_comment": 1}',
    ],
)
def test_a_deepspeed_config_given_as_accelerates(text: str, write: Write) -> None:
    path = write("a.yaml", text)
    assert complaint(lambda: read_accelerate_file(path)) == (
        "a.yaml: this is a DeepSpeed config: give it with --deepspeed"
    )


@pytest.mark.parametrize(
    "content",
    [
        {"transformer_layer_cls_to_wrap": ["GPT2Block"], "xla": False},
        {"fsdp": "shard_grad_op offload auto_wrap", "fsdp_config": {"min_num_params": 1000}},
        {"fsdp_min_num_params": 1000},
    ],
)
def test_a_file_for_transformers_own_trainer(write: Write, content: dict[str, Any]) -> None:
    path = write("fsdp.json", json.dumps(content))
    for read in (read_deepspeed_file, read_accelerate_file, read_launch_file):
        line = complaint(lambda read=read: read(path))
        assert line.startswith(
            "fsdp.json: this is a file for transformers' own Trainer; write an accelerate YAML, "
            "{distributed_type: FSDP, fsdp_config: {fsdp_version: 2, ...}}"
        )
