"""Entries of an accelerate file: any misspelt key is answered with the right one."""

from __future__ import annotations

import pytest
from launch_texts import DDP, FSDP, ZERO, Write, complaint

from trainer.launching.files.accelerate_entries import spellings
from trainer.launching.files.accelerate_file import read_accelerate_file

# One line for each rule: what is in the file, and the message.
MISTAKES = [
    (
        f"{DDP}mixed_precison: bf16",
        "a.yaml:3: mixed_precison: 'bf16': unknown key; did you mean 'mixed_precision'?",
    ),
    (
        f"{ZERO}  zero_stge: 3",
        "a.yaml:4: deepspeed_config.zero_stge: 3: unknown key; did you mean 'zero_stage'?",
    ),
    (
        f"{DDP}zero_stage: 3",
        "a.yaml:3: zero_stage: 3: unknown key; it belongs under deepspeed_config",
    ),
    (
        f"{ZERO}  zero_stage: 1\n  mixed_precision: bf16",
        "a.yaml:5: deepspeed_config.mixed_precision: 'bf16': unknown key; "
        "it belongs at the top level",
    ),
    (
        f"{DDP}parallelism_config:\n  tp_size: 2",
        "a.yaml:4: parallelism_config.tp_size: 2: unknown key; "
        "did you mean 'parallelism_config_tp_size'?",
    ),
    (
        f"{ZERO}  zero_stage: 3\n  offload_optimizer_pin_memory: true",
        "a.yaml:5: deepspeed_config.offload_optimizer_pin_memory: true: unknown key; "
        "it is zero_optimization.offload_optimizer.pin_memory of DeepSpeed's JSON: "
        "name one with deepspeed_config_file",
    ),
    (
        f"{FSDP}  fsdp_limit_all_gathers: true",
        "a.yaml:5: fsdp_config.fsdp_limit_all_gathers: true: unknown key; "
        "accelerate's config file has none of this name; remove it",
    ),
    (
        f"{DDP}_comment: two GPUs",
        "a.yaml:3: _comment: 'two GPUs': unknown key; accelerate refuses it; "
        "write a # comment instead",
    ),
    (
        f"{FSDP}  version: 2",
        "a.yaml:5: fsdp_config.version: 2: is given twice, also as fsdp_config.fsdp_version "
        "at a.yaml:4; keep one",
    ),
    (f"{DDP}fsdp_config: [1]", "a.yaml:3: fsdp_config: [1]: must be a mapping"),
    (
        f"{DDP}use_cpu: 'false'",
        "a.yaml:3: use_cpu: 'false': must be true or false; remove the quotes",
    ),
]


@pytest.mark.parametrize(("text", "line"), MISTAKES, ids=[line for _, line in MISTAKES])
def test_a_mistake_is_one_line(write: Write, text: str, line: str) -> None:
    assert complaint(lambda: read_accelerate_file(write("a.yaml", text))) == line


def test_null_and_empty_sections_count_as_absent(write: Write) -> None:
    text = (
        f"{DDP}mixed_precision: null\nmain_process_ip: null\nfsdp_config: {{}}\n"
        "deepspeed_config:\ntpu_env: []\n"
    )
    request = read_accelerate_file(write("a.yaml", text))
    assert (request.mixed_precision, request.notices) == (None, ())


def test_both_spellings_are_known() -> None:
    assert {"fsdp_ignored_modules", "ignored_modules"} <= spellings("fsdp_config")
    assert "tp_size" not in spellings("parallelism_config")
