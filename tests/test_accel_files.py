"""Accelerate files, DeepSpeed JSONs and launcher flags: what is read, and every mistake with its one line."""

from __future__ import annotations

import json
import string
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DeepSpeedPlugin, TorchDynamoPlugin
from deepspeed.runtime.config import DeepSpeedConfig
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from origins import sourced

from trainer.errors import ConfigError, Sourced
from trainer.launching.cpu_rehearsal import rehearsal_changes, rehearsal_notices, rehearsal_precision
from trainer.launching.files.accelerate_keys import section_names, spellings
from trainer.launching.files.read import (
    read_accelerate_file,
    read_deepspeed_file,
    read_launch_file,
    read_launch_flags,
    read_request,
)
from trainer.launching.files.tables import accelerate_keys, deepspeed_keys
from trainer.launching.request import Request

ROOT = Path(__file__).resolve().parent.parent
WRITTEN = ROOT / "tests" / "launch_files"  # as people and their tools write them

DDP = "distributed_type: MULTI_GPU\nnum_processes: 2\n"
FSDP = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 2\n"
FSDP1 = "distributed_type: FSDP\nnum_processes: 2\nfsdp_config:\n  fsdp_version: 1\n"
ZERO = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n"
BY_FILE = f"{ZERO}  deepspeed_config_file: ds.json\n"

Write = Callable[[str, str], str]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write a file into an empty current folder; messages then hold its bare name."""
    monkeypatch.chdir(tmp_path)

    def to_file(name: str, text: str) -> str:
        (tmp_path / name).write_text(text)
        return name

    return to_file


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda count: monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def flag(value: Any, name: str) -> dict[str, Sourced[Any]]:
    return {name: sourced(value, f"command line (--{name})")}


def complaint(read: Callable[[], Request]) -> str:
    with pytest.raises(ConfigError) as caught:
        read()
    return str(caught.value)


# What runs


def test_single(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", "distributed_type: 'NO'\n"))
    assert (request.strategy, str(request.strategy_origin)) == ("single", "a.yaml:1 (distributed_type)")
    assert request.world_size == sourced(1, "a.yaml:1 (distributed_type)")
    assert request.notices == ()


def test_ddp_with_its_homes(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", f"{DDP}mixed_precision: BF16\nuse_cpu: true\n"))
    assert request.strategy == "ddp"
    assert request.world_size == sourced(2, "a.yaml:2 (num_processes)")
    assert request.mixed_precision == sourced("bf16", "a.yaml:3 (mixed_precision)")
    assert request.use_cpu
    assert request.files == ("a.yaml",)


def test_json_is_read_as_accelerate_does(write: Write) -> None:
    text = json.dumps({"distributed_type": "MULTI_GPU", "num_processes": 4, "num_machines": 2}, indent=1)
    request = read_accelerate_file(write("a.json", text))
    assert (request.world_size, request.num_machines) == (sourced(4, "a.json:3 (num_processes)"), 2)


def test_null_and_empty_sections_count_as_absent(write: Write) -> None:
    text = f"{DDP}mixed_precision: null\nmain_process_ip: null\nfsdp_config: {{}}\ndeepspeed_config:\ntpu_env: []\n"
    request = read_accelerate_file(write("a.yaml", text))
    assert (request.mixed_precision, request.notices) == (None, ())


def test_older_spelling_of_precision(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", f"{DDP}fp16: true\n"))
    assert request.mixed_precision == sourced("fp16", "a.yaml:3 (fp16)")


def test_dynamo(write: Write) -> None:
    text = f"{DDP}dynamo_config:\n  dynamo_backend: INDUCTOR\n  mode: default\n  dynamo_use_dynamic: false\n"
    dynamo = read_accelerate_file(write("a.yaml", text)).dynamo
    assert dynamo == {"backend": "inductor", "mode": "default", "dynamic": False}
    assert TorchDynamoPlugin(**dynamo).backend.value == "INDUCTOR"
    assert read_accelerate_file(write("b.yaml", f"{DDP}dynamo_config:\n  dynamo_backend: 'NO'\n")).dynamo == {}
    assert read_accelerate_file(write("c.yaml", f"{DDP}dynamo_backend: EAGER\n")).dynamo == {"backend": "eager"}


def test_section_of_another_strategy_is_said(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", f"{DDP}fsdp_config:\n  fsdp_version: 2\n"))
    assert request.strategy == "ddp"
    assert request.notices == ("a.yaml:4: fsdp_config: no effect under MULTI_GPU",)


def test_parallelism_of_one_is_nothing(write: Write) -> None:
    text = f"{FSDP}parallelism_config:\n  parallelism_config_tp_size: 1\n"
    assert read_accelerate_file(write("a.yaml", text)).strategy == "fsdp"


# FSDP


def test_fsdp_gives_every_argument(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stray FSDP_* variables change nothing, since the plugin is given every argument that reads one."""
    text = FSDP + "".join(
        f"  {line}\n"
        for line in (
            "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
            "fsdp_transformer_layer_cls_to_wrap: LlamaDecoderLayer, Other",
            "fsdp_offload_params: true",
            "fsdp_activation_checkpointing: 'true'",
            "fsdp_activation_checkpointing_offload: true",
            "fsdp_ignored_modules: head.*",
        )
    )
    request = read_accelerate_file(write("a.yaml", text))
    assert request.fsdp == {
        "fsdp_version": 2,
        "reshard_after_forward": True,
        "cpu_offload": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_cls_names_to_wrap": ["LlamaDecoderLayer", "Other"],
        "min_num_params": 100_000_000,
        "activation_checkpointing": True,
        "activation_checkpointing_offload": True,
        "ignored_modules": "head.*",
        "cpu_ram_efficient_loading": False,
        "state_dict_type": "SHARDED_STATE_DICT",
        "backward_prefetch": "NO_PREFETCH",
    }
    plain = read_accelerate_file(write("b.yaml", FSDP)).fsdp
    for name, value in {
        "RESHARD_AFTER_FORWARD": "false",
        "OFFLOAD_PARAMS": "true",
        "AUTO_WRAP_POLICY": "SIZE_BASED_WRAP",
        "ACTIVATION_CHECKPOINTING": "true",
        "IGNORED_MODULES": ".*",
        "STATE_DICT_TYPE": "LOCAL_STATE_DICT",
        "VERSION": "1",
        "BACKWARD_PREFETCH": "BACKWARD_PRE",
        "CPU_RAM_EFFICIENT_LOADING": "true",
    }.items():
        monkeypatch.setenv(f"FSDP_{name}", value)
    plugin = FullyShardedDataParallelPlugin(**plain)
    assert plugin.reshard_after_forward is True
    assert plugin.auto_wrap_policy is None
    assert plugin.activation_checkpointing is False
    assert plugin.ignored_modules == []
    assert plugin.cpu_ram_efficient_loading is False


@pytest.mark.parametrize(
    ("line", "reshards"),
    [
        ("fsdp_sharding_strategy: FULL_SHARD", True),
        ("fsdp_sharding_strategy: SHARD_GRAD_OP", False),
        ("fsdp_sharding_strategy: 1", True),
        ("fsdp_sharding_strategy: 2", False),
        ("fsdp_reshard_after_forward: FULL_SHARD", True),
        ("fsdp_reshard_after_forward: SHARD_GRAD_OP", False),
        ("fsdp_reshard_after_forward: false", False),
    ],
)
def test_fsdp1_maps_to_fsdp2(write: Write, line: str, reshards: bool) -> None:
    request = read_accelerate_file(write("a.yaml", f"{FSDP1}  {line}\n"))
    assert (request.fsdp["fsdp_version"], request.fsdp["reshard_after_forward"]) == (2, reshards)
    assert request.notices == ("a.yaml:4: fsdp_config.fsdp_version: FSDP1 runs as FSDP2; write fsdp_version: 2",)


def test_fsdp_without_version_is_mapped_and_said(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", "distributed_type: FSDP\nnum_processes: 2\n"))
    told = "no fsdp_version, which accelerate takes as 1: runs as FSDP2; write fsdp_version: 2"
    assert request.notices == (f"a.yaml:1 (distributed_type): {told}",)


def test_fsdp1_leftovers_share_one_line(write: Write) -> None:
    text = (
        f"{FSDP}  fsdp_use_orig_params: true\n  fsdp_forward_prefetch: false\n"
        "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_state_dict_type: FULL_STATE_DICT\n"
    )
    assert read_accelerate_file(write("a.yaml", text)).notices == (
        "a.yaml:5: no effect under FSDP2: fsdp_use_orig_params, fsdp_forward_prefetch",
        "a.yaml:7: fsdp_config.fsdp_cpu_ram_efficient_loading: no effect: "
        "each rank builds the whole model in host memory, then keeps its shard",
        "a.yaml:8: fsdp_config.fsdp_state_dict_type: no effect: "
        "in checkpoints each rank writes its part; the model is exported whole",
    )


# DeepSpeed


def test_inline_zero(write: Write) -> None:
    text = (
        f"{ZERO}  zero_stage: 3\n  gradient_accumulation_steps: 4\n  gradient_clipping: 1\n"
        "  offload_optimizer_device: cpu\n  offload_param_device: none\n  zero3_save_16bit_model: true\n"
    )
    request = read_accelerate_file(write("a.yaml", text))
    assert (request.strategy, str(request.strategy_origin)) == ("zero3", "a.yaml:4 (deepspeed_config.zero_stage)")
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
    text = f"{ZERO}  zero_stage: 1\n  gradient_accumulation_steps: auto\n  gradient_clipping: auto\n"
    request = read_accelerate_file(write("a.yaml", text))
    assert (request.accumulation_steps, request.max_grad_norm) == (None, None)


def test_init_flag_of_stage_3_is_said(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", f"{ZERO}  zero_stage: 2\n  zero3_init_flag: true\n"))
    assert request.notices == ("a.yaml:5: deepspeed_config.zero3_init_flag: no effect in stage 2",)


FULL = {
    "fp16": {"enabled": "auto", "loss_scale": 0, "min_loss_scale": 1},
    "bf16": {"enabled": False},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
    "zero_optimization": {"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto", "allgather_bucket_size": 2e8},
    "gradient_accumulation_steps": 2,
    "gradient_clipping": "auto",
    "steps_per_print": 2000,
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": "auto",
}


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
    assert {key: given.value for key, given in request.optimizer.values.items()} == {"betas": [0.9, 0.95]}
    assert {key: given.value for key, given in request.optimizer.defaults.items()} == {"eps": 1e-8, "weight_decay": 0.0}
    assert request.scheduler is not None
    assert (request.scheduler.name, request.scheduler.values) == ("constant", {})
    assert {key: given.value for key, given in request.scheduler.defaults.items()} == {"warmup_type": "log"}
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
def test_precision_of_the_json(write: Write, sections: dict[str, Any], precision: str | None) -> None:
    text = json.dumps({"zero_optimization": {"stage": 1}, **sections})
    request = read_deepspeed_file(write("ds.json", text))
    assert (request.mixed_precision and request.mixed_precision.value) == precision
    assert request.deepspeed == {"zero_optimization": {"stage": 1}}


def test_json_named_in_the_yaml(write: Write) -> None:
    write("ds.json", json.dumps(FULL))
    request = read_accelerate_file(write("a.yaml", f"{BY_FILE}  zero3_init_flag: false\n"))
    assert (request.strategy, str(request.strategy_origin)) == ("zero2", "ds.json:1 (zero_optimization.stage)")
    assert request.world_size == sourced(2, "a.yaml:2 (num_processes)")
    assert request.files == ("a.yaml", "ds.json")


def test_flags_fill_what_the_json_leaves_open(write: Write) -> None:
    write("ds.json", json.dumps(FULL))
    path = write("a.yaml", BY_FILE)
    open_values = flag(0.5, "gradient_clipping") | flag("bf16", "mixed_precision")
    request = read_accelerate_file(path, overrides=open_values)
    assert request.max_grad_norm == sourced(0.5, "command line (--gradient_clipping)")
    assert request.mixed_precision == sourced("bf16", "command line (--mixed_precision)")
    assert complaint(lambda: read_accelerate_file(path, overrides=flag(3, "gradient_accumulation_steps"))) == (
        "command line: --gradient_accumulation_steps: 3: disagrees with 2 at ds.json:1 (gradient_accumulation_steps); "
        "keep one of them"
    )


def test_both_ways_beside_each_other_is_what_accelerate_refuses() -> None:
    """Our rule (all but ``deepspeed_*`` and ``zero3_init_flag``) names just the keys of Accelerate's own check."""
    constants = DeepSpeedPlugin._deepspeed_config_checks.__code__.co_consts
    names = {n for c in constants for n in (c if isinstance(c, tuple) else (c,)) if str(n).startswith("ACCELERATE_")}
    refused = {name.replace("ACCELERATE_", "").replace("DEEPSPEED_", "").lower() for name in names}
    arguments = accelerate_keys("deepspeed_config").keys()
    ours = {name for name in arguments if not name.startswith("deepspeed_") and name != "zero3_init_flag"}
    assert refused & arguments == ours


# Mistakes in accelerate files


MISTAKES = [
    (f"{DDP}mixed_precison: bf16", "a.yaml:3: mixed_precison: 'bf16': unknown key; did you mean 'mixed_precision'?"),
    (f"{DDP}zero_stage: 3", "a.yaml:3: zero_stage: 3: unknown key; it belongs under deepspeed_config"),
    (f"{ZERO}  zero_stge: 3", "a.yaml:4: deepspeed_config.zero_stge: 3: unknown key; did you mean 'zero_stage'?"),
    (
        f"{ZERO}  zero_stage: 1\n  mixed_precision: bf16",
        "a.yaml:5: deepspeed_config.mixed_precision: 'bf16': unknown key; it belongs at the top level",
    ),
    (
        f"{ZERO}  zero_stage: 2\n  gradient_clippping: 1.0",
        "a.yaml:5: deepspeed_config.gradient_clippping: 1.0: unknown key; did you mean 'gradient_clipping'?",
    ),
    (
        f"{DDP}parallelism_config:\n  tp_size: 2",
        "a.yaml:4: parallelism_config.tp_size: 2: unknown key; did you mean 'parallelism_config_tp_size'?",
    ),
    (
        "distributed_type: MULTI_GPU\nnum_processes: '2'",
        "a.yaml:2: num_processes: '2': must be a whole number; remove the quotes",
    ),
    ("distributed_type: MULTI_GPU\nnum_processes: 0", "a.yaml:2: num_processes: 0: must be at least 1"),
    ("distributed_type: MULTI_GPU\nnum_processes: true", "a.yaml:2: num_processes: true: must be a whole number"),
    (f"{DDP}num_machines: 3", "a.yaml:2: num_processes: 2: must be a multiple of num_machines 3"),
    (
        "distributed_type: 'NO'\nnum_processes: 2",
        "a.yaml:2: num_processes: 2: accelerate starts one process under distributed_type 'NO'; "
        "write MULTI_GPU, or num_processes: 1",
    ),
    (
        "distributed_type: DDP\nnum_processes: 2",
        "a.yaml:1: distributed_type: 'DDP': no such type; did you mean 'MULTI_GPU' (accelerate's name for DDP)?",
    ),
    (
        "distributed_type: ZeRO-3\nnum_processes: 2",
        "a.yaml:1: distributed_type: 'ZeRO-3': no such type; did you mean 'DEEPSPEED' (accelerate's name for ZeRO-3)?",
    ),
    (
        "distributed_type: deepspeed\nnum_processes: 2",
        "a.yaml:1: distributed_type: 'deepspeed': no such type; did you mean 'DEEPSPEED'?",
    ),
    (
        "distributed_type: MULTI_CPU\nnum_processes: 2",
        "a.yaml:1: distributed_type: 'MULTI_CPU': accelerate starts one process for it; write distributed_type: "
        "MULTI_GPU with use_cpu: false, which rehearses on the CPU where there is no GPU",
    ),
    (
        "distributed_type: MULTI_CPU\nnum_processes: 1",
        "a.yaml:1: distributed_type: 'MULTI_CPU': accelerate starts one process for it; "
        "write distributed_type: 'NO' with use_cpu: true",
    ),
    (
        "distributed_type: XLA\nnum_processes: 2",
        "a.yaml:1: distributed_type: 'XLA': not supported by samecurve; supported: NO, MULTI_GPU, FSDP, DEEPSPEED",
    ),
    ("num_processes: 2", "a.yaml: distributed_type: is missing; write one of NO, MULTI_GPU, FSDP, DEEPSPEED"),
    (
        "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'",
        "a.yaml:1: compute_environment: 'AMAZON_SAGEMAKER': not supported by samecurve; write LOCAL_MACHINE",
    ),
    (
        f"{DDP}mixed_precision: no",
        "a.yaml:3: mixed_precision: false: must be one of 'no', 'bf16', 'fp16'; write 'no' in quotes, "
        "for YAML reads a bare no as false",
    ),
    (f"{DDP}mixed_precision: fp8", "a.yaml:3: mixed_precision: 'fp8': not supported by samecurve; write bf16"),
    (
        f"{DDP}mixed_precision: bf61",
        "a.yaml:3: mixed_precision: 'bf61': must be one of 'no', 'bf16', 'fp16'; did you mean 'bf16'?",
    ),
    (
        f"{DDP}mixed_precision: bf16\nfp16: true",
        "a.yaml:4: fp16: true: disagrees with 'bf16' at a.yaml:3 (mixed_precision); remove it",
    ),
    (f"{DDP}use_cpu: 'false'", "a.yaml:3: use_cpu: 'false': must be true or false; remove the quotes"),
    (f"{DDP}main_process_port: '1'", "a.yaml:3: main_process_port: '1': must be a whole number; remove the quotes"),
    (f"{DDP}gpu_ids: 0", "a.yaml:3: gpu_ids: 0: must be text; put it in quotes"),
    (f"{DDP}debug: 1", "a.yaml:3: debug: 1: must be true or false"),
    (
        f"{DDP}parallelism_config:\n  parallelism_config_cp_size: 2",
        "a.yaml:4: parallelism_config.parallelism_config_cp_size: 2: "
        "more than 1 is not supported by samecurve yet; write 1, or remove it",
    ),
    (
        "distributed_type: 'NO'\nmpirun_config:\n  mpirun_hostfile: hosts",
        "a.yaml:3: mpirun_config.mpirun_hostfile: 'hosts': mpirun_config is not supported by samecurve; remove it",
    ),
    ("zero_optimization: {stage: 2}", "a.yaml: this is a DeepSpeed config: give it with --deepspeed"),
    (f"{DDP}fsdp_config: [1]", "a.yaml:3: fsdp_config: [1]: must be a mapping"),
    (
        f"{DDP}dynamo_config:\n  dynamo_mode: fastest",
        "a.yaml:4: dynamo_config.dynamo_mode: 'fastest': must be one of 'default', 'reduce-overhead', 'max-autotune'",
    ),
    (
        f"{DDP}dynamo_backend: eager\ndynamo_config:\n  backend: inductor",
        "a.yaml:3: dynamo_backend: 'eager': disagrees with 'inductor' at a.yaml:5 (dynamo_config.backend); remove it",
    ),
    (
        FSDP.replace("2\n", "3\n").replace("num_processes: 3", "num_processes: 2"),
        "a.yaml:4: fsdp_config.fsdp_version: 3: must be 2, or 1, which runs as FSDP2",
    ),
    (
        f"{FSDP}  version: 2",
        "a.yaml:5: fsdp_config.version: 2: stands twice, also as fsdp_config.fsdp_version at a.yaml:4; keep one",
    ),
    (
        f"{FSDP1}  fsdp_sharding_strategy: NO_SHARD",
        "a.yaml:5: fsdp_config.fsdp_sharding_strategy: 'NO_SHARD': NO_SHARD is DDP: write distributed_type: MULTI_GPU",
    ),
    (
        f"{FSDP1}  fsdp_sharding_strategy: HYBRID_SHARD",
        "a.yaml:5: fsdp_config.fsdp_sharding_strategy: 'HYBRID_SHARD': hybrid sharding is parallelism_config "
        "(dp_replicate_size, dp_shard_size) under FSDP2, which samecurve does not support yet; "
        "write fsdp_reshard_after_forward: true",
    ),
    (
        f"{FSDP1}  fsdp_sharding_strategy: FULL_SHARDS",
        "a.yaml:5: fsdp_config.fsdp_sharding_strategy: 'FULL_SHARDS': must be one of 'FULL_SHARD', 'SHARD_GRAD_OP', "
        "'NO_SHARD', 'HYBRID_SHARD', 'HYBRID_SHARD_ZERO2'; did you mean 'FULL_SHARD'?",
    ),
    (
        f"{FSDP1}  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_reshard_after_forward: false",
        "a.yaml:5: fsdp_config.fsdp_sharding_strategy: 'FULL_SHARD': disagrees with false at a.yaml:6 "
        "(fsdp_config.fsdp_reshard_after_forward); keep fsdp_reshard_after_forward",
    ),
    (
        f"{FSDP}  fsdp_sharding_strategy: SHARD_GRAD_OP",
        "a.yaml:5: fsdp_config.fsdp_sharding_strategy: 'SHARD_GRAD_OP': FSDP2 has no sharding strategy; "
        "write fsdp_reshard_after_forward: false",
    ),
    (
        f"{FSDP}  fsdp_reshard_after_forward: FULL_SHARD",
        "a.yaml:5: fsdp_config.fsdp_reshard_after_forward: 'FULL_SHARD': "
        "must be true (FULL_SHARD) or false (SHARD_GRAD_OP) under fsdp_version 2",
    ),
    (
        f"{FSDP}  fsdp_offload_params: 1",
        "a.yaml:5: fsdp_config.fsdp_offload_params: 1: must be true or false",
    ),
    (
        f"{FSDP}  fsdp_activation_checkpointing_offload: true",
        "a.yaml:5: fsdp_config.fsdp_activation_checkpointing_offload: true: needs fsdp_activation_checkpointing: true",
    ),
    (
        f"{FSDP}  fsdp_auto_wrap_policy: TRANSFORMER_WRAP",
        "a.yaml:5: fsdp_config.fsdp_auto_wrap_policy: 'TRANSFORMER_WRAP': must be one of 'TRANSFORMER_BASED_WRAP', "
        "'SIZE_BASED_WRAP', 'NO_WRAP'; did you mean 'TRANSFORMER_BASED_WRAP'?",
    ),
    (
        f"{FSDP}  fsdp_transformer_layer_cls_to_wrap: 3",
        "a.yaml:5: fsdp_config.fsdp_transformer_layer_cls_to_wrap: 3: "
        "must be class names, as a list or separated by commas",
    ),
    (
        f"{FSDP}  fsdp_state_dict_type: LOCAL_STATE_DICT",
        "a.yaml:5: fsdp_config.fsdp_state_dict_type: 'LOCAL_STATE_DICT': "
        "must be one of 'SHARDED_STATE_DICT', 'FULL_STATE_DICT'; did you mean 'FULL_STATE_DICT'?",
    ),
    (f"{ZERO}  zero_stage: 4", "a.yaml:4: deepspeed_config.zero_stage: 4: must be 1, 2 or 3"),
    (
        f"{ZERO}  zero_stage: 0",
        "a.yaml:4: deepspeed_config.zero_stage: 0: stage 0 is DDP: write distributed_type: MULTI_GPU",
    ),
    (
        f"{ZERO}  zero_stage: '3'",
        "a.yaml:4: deepspeed_config.zero_stage: '3': must be a whole number; remove the quotes",
    ),
    (
        f"{ZERO}  gradient_clipping: 1.0",
        "a.yaml:1: deepspeed_config.zero_stage: is missing, which accelerate takes as 2; write zero_stage: 1, 2 or 3",
    ),
    (
        f"{ZERO}  zero_stage: 2\n  gradient_accumulation_steps: 0",
        "a.yaml:5: deepspeed_config.gradient_accumulation_steps: 0: must be at least 1",
    ),
    (
        f"{ZERO}  zero_stage: 2\n  gradient_clipping: -1.0",
        "a.yaml:5: deepspeed_config.gradient_clipping: -1.0: must be at least 0",
    ),
    (
        f"{ZERO}  zero_stage: 2\n  offload_optimizer_device: gpu",
        "a.yaml:5: deepspeed_config.offload_optimizer_device: 'gpu': must be one of 'none', 'cpu', 'nvme'; "
        "did you mean 'cpu'?",
    ),
    (
        f"{ZERO}  zero_stage: 2\n  offload_param_device: cpu",
        "a.yaml:5: deepspeed_config.offload_param_device: 'cpu': "
        "works in stage 3 only, this is stage 2; remove it or write stage 3",
    ),
    (
        f"{ZERO}  zero_stage: 2\n  offload_optimizer_device: nvme\n  offload_optimizer_nvme_path: /nvme",
        "a.yaml:5: deepspeed_config.offload_optimizer_device: 'nvme': "
        "not supported by samecurve, whose checkpoints read the optimizer's state; write cpu",
    ),
    (
        f"{ZERO}  zero_stage: 3\n  offload_param_device: nvme",
        "a.yaml:5: deepspeed_config.offload_param_device: 'nvme': nvme needs a path: write nvme_path",
    ),
    (
        f"num_machines: 2\n{ZERO}  zero_stage: 3",
        "a.yaml:2: deepspeed_config.deepspeed_multinode_launcher: several machines need standard; "
        "accelerate's default, pdsh, starts one separate world on each",
    ),
    (
        f"num_machines: 2\n{ZERO}  zero_stage: 3\n  deepspeed_multinode_launcher: pdsh",
        "a.yaml:6: deepspeed_config.deepspeed_multinode_launcher: 'pdsh': several machines need standard; "
        "accelerate's default, pdsh, starts one separate world on each",
    ),
    (
        f"{ZERO}  zero_stage: 3\n  deepspeed_moe_layer_cls_names: Block",
        "a.yaml:5: deepspeed_config.deepspeed_moe_layer_cls_names: 'Block': not supported by samecurve; "
        "use zero_optimization.leaf_module in a deepspeed_config_file",
    ),
    (
        f"{ZERO}  deepspeed_config_file: missing.json",
        "a.yaml:4: deepspeed_config.deepspeed_config_file: 'missing.json': does not exist "
        "(accelerate looks for it from the current folder)",
    ),
    (
        f"{BY_FILE}  zero_stage: 3",
        "a.yaml:5: deepspeed_config.zero_stage: 3: stands beside deepspeed_config.deepspeed_config_file at a.yaml:4, "
        "which must say it; remove it here",
    ),
    (
        f"mixed_precision: bf16\n{BY_FILE}",
        "a.yaml:1: mixed_precision: 'bf16': accelerate refuses it beside deepspeed_config.deepspeed_config_file; "
        'remove it and write "bf16": {"enabled": true} in the JSON',
    ),
    (
        f"mixed_precision: fp16\n{BY_FILE}",
        "a.yaml:1: mixed_precision: 'fp16': accelerate refuses it beside deepspeed_config.deepspeed_config_file; "
        'remove it and write "fp16": {"enabled": true} in the JSON',
    ),
    (
        f"mixed_precision: 'no'\n{BY_FILE}",
        "a.yaml:1: mixed_precision: 'no': accelerate refuses it beside deepspeed_config.deepspeed_config_file; "
        "remove it",
    ),
    (
        f"{ZERO}  zero_stage: 2\n  bf16_enabled: true",
        "a.yaml:5: deepspeed_config.bf16_enabled: true: unknown key; it is bf16.enabled of DeepSpeed's JSON: "
        "name one with deepspeed_config_file",
    ),
    (
        f"{ZERO}  zero_stage: 3\n  offload_optimizer_pin_memory: true",
        "a.yaml:5: deepspeed_config.offload_optimizer_pin_memory: true: unknown key; "
        "it is zero_optimization.offload_optimizer.pin_memory of DeepSpeed's JSON: name one with deepspeed_config_file",
    ),
    (
        f"{FSDP}  fsdp_limit_all_gathers: true",
        "a.yaml:5: fsdp_config.fsdp_limit_all_gathers: true: unknown key; "
        "accelerate's config file has none of this name; remove it",
    ),
    (
        f"{DDP}_comment: two GPUs",
        "a.yaml:3: _comment: 'two GPUs': accelerate refuses keys that it does not know; write a # comment instead",
    ),
    (f"{DDP}gpu_ids: '0'", "a.yaml:3: gpu_ids: '0': accelerate wants as many as processes, 2; write 'all'"),
    (
        "distributed_type: MULTI_GPU\nnum_processes: 010",
        "a.yaml:2: num_processes: 010: YAML takes a leading zero for octal; write 10, or '010' in quotes if it is text",
    ),
    ("", "a.yaml: the accelerate config file is empty"),
    ("- 1\n", "a.yaml: the root of the accelerate config file must be a mapping, not a list"),
    (f"{DDP}fsdp_config:\n\tfsdp_version: 2", "a.yaml:4: not valid YAML: a tab: YAML is indented with spaces only"),
    (f"{DDP}num_processes: 4", "a.yaml:3: num_processes: the key stands twice, first on line 2; keep one"),
]


@pytest.mark.parametrize(("text", "line"), MISTAKES, ids=[line for _, line in MISTAKES])
def test_a_mistake_is_one_line(write: Write, text: str, line: str) -> None:
    write("ds.json", json.dumps({"zero_optimization": {"stage": 2}}))
    assert complaint(lambda: read_accelerate_file(write("a.yaml", text))) == line


def test_all_problems_at_once(write: Write) -> None:
    write("ds.json", '{"zero_optimization": {"stage": 5}}')
    text = f"{BY_FILE}mixed_precisio: bf16\nnum_machines: 0\n"
    assert complaint(lambda: read_accelerate_file(write("a.yaml", text))).splitlines() == [
        "a.yaml:5: mixed_precisio: 'bf16': unknown key; did you mean 'mixed_precision'?",
        "a.yaml:6: num_machines: 0: must be at least 1",
        "ds.json:1: zero_optimization.stage: 5: must be 1, 2 or 3",
    ]


def test_json_beside_the_yaml_is_not_where_accelerate_looks(write: Write, tmp_path: Path) -> None:
    (tmp_path / "conf").mkdir()
    write("conf/ds.json", '{"zero_optimization": {"stage": 2}}')
    assert complaint(lambda: read_accelerate_file(write("conf/a.yaml", BY_FILE))) == (
        "conf/a.yaml:4: deepspeed_config.deepspeed_config_file: 'ds.json': does not exist (accelerate looks for it "
        "from the current folder); it lies beside this file: write 'conf/ds.json'"
    )


def test_accelerate_itself_takes_the_typo(write: Write) -> None:
    """Why this module exists: the same file that ends with one line here is fine there, and runs stage 2."""
    path = write("a.yaml", f"{ZERO}  zero_stge: 3\n")
    assert load_config_from_file(path).deepspeed_config == {"zero_stge": 3}
    assert DeepSpeedPlugin().zero_stage == 2
    assert "did you mean 'zero_stage'?" in complaint(lambda: read_accelerate_file(path))


def test_deepspeed_itself_takes_the_typo(write: Write) -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "zero_optimization": {"stage": 2}, "gradient_cliping": 0.5}'
    assert DeepSpeedConfig(json.loads(text)).gradient_clipping != 0.5
    assert "did you mean 'gradient_clipping'?" in complaint(lambda: read_deepspeed_file(write("ds.json", text)))


# Mistakes in DeepSpeed JSONs

Z = '"zero_optimization": {"stage": 2}'
STAGE_0 = (
    "stage 0 is DDP, which is started without a DeepSpeed JSON: by torchrun alone, or by accelerate launch with "
    "accel_configs/ddp.yaml"
)
JSON_MISTAKES = [
    (f'{{{Z}, "gradient_cliping": 1.0}}', "gradient_cliping: 1.0: unknown key; did you mean 'gradient_clipping'?"),
    (f'{{{Z}, "stage": 2}}', "stage: 2: unknown key; it belongs under zero_optimization"),
    (
        '{"zero_optimization": {"stage": 2, "reduce_buket_size": 1}}',
        "zero_optimization.reduce_buket_size: 1: unknown key; did you mean 'reduce_bucket_size'?",
    ),
    (
        '{"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu", "pin_memry": true}}}',
        "zero_optimization.offload_param.pin_memry: true: unknown key; did you mean 'pin_memory'?",
    ),
    (
        f'{{{Z}, "activation_checkpointing": {{"partition_activation": true}}}}',
        "activation_checkpointing.partition_activation: true: unknown key; did you mean 'partition_activations'?",
    ),
    (
        f'{{{Z}, "checkpoint": {{"parallel_write": {{"pipeline_stages": true}}}}}}',
        "checkpoint.parallel_write.pipeline_stages: true: unknown key; did you mean 'pipeline_stage'?",
    ),
    (
        f'{{{Z}, "timers": {{"throughput": {{"enabld": true}}}}}}',
        "timers.throughput.enabld: true: unknown key; did you mean 'enabled'?",
    ),
    (
        f'{{{Z}, "optimizer": {{"typ": "AdamW", "params": {{}}}}}}',
        "optimizer.typ: 'AdamW': unknown key; did you mean 'type'?",
    ),
    (
        f'{{{Z}, "optimizer": {{"params": {{}}}}}}',
        'optimizer: {\'params\': {}}: must be {"type": name, "params": {...}}',
    ),
    (
        f'{{{Z}, "optimizer": {{"type": "AdamW", "params": {{"lr": "1e-4"}}}}}}',
        "optimizer.params.lr: '1e-4': must be a number; remove the quotes",
    ),
    ('{"zero_optimization": {"stage": 4}}', "zero_optimization.stage: 4: must be 1, 2 or 3"),
    ('{"zero_optimization": {"stage": 0}}', f"zero_optimization.stage: 0: {STAGE_0}"),
    (
        '{"zero_optimization": {"stage": "3"}}',
        "zero_optimization.stage: '3': must be a whole number; remove the quotes",
    ),
    ('{"zero_optimization": true}', 'zero_optimization: true: must be a mapping with the stage: {"stage": 1}, 2 or 3'),
    (f'{{{Z}, "train_batch_size": 0}}', "train_batch_size: 0: must be at least 1"),
    (f'{{{Z}, "train_micro_batch_size_per_gpu": 1.5}}', "train_micro_batch_size_per_gpu: 1.5: must be a whole number"),
    (f'{{{Z}, "gradient_clipping": -1}}', "gradient_clipping: -1: must be at least 0"),
    (f'{{{Z}, "gradient_clipping": "1"}}', "gradient_clipping: '1': must be a number; remove the quotes"),
    (f'{{{Z}, "wall_clock_breakdown": 1}}', "wall_clock_breakdown: 1: must be true or false"),
    (f'{{{Z}, "prescale_gradients": "true"}}', "prescale_gradients: 'true': must be true or false; remove the quotes"),
    (f'{{{Z}, "aio": 3}}', "aio: 3: must be a mapping"),
    (f'{{{Z}, "checkpoint": 3}}', "checkpoint: 3: must be a mapping"),
    (
        '{"zero_optimization": {"stage": 2, "reduce_bucket_size": -5}}',
        "zero_optimization.reduce_bucket_size: -5: must be greater than 0",
    ),
    (
        '{"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "gpu"}}}',
        "zero_optimization.offload_optimizer.device: 'gpu': must be one of 'none', 'cpu', 'nvme'; did you mean 'cpu'?",
    ),
    (
        '{"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}}',
        "zero_optimization.offload_param: {'device': 'cpu'}: works in stage 3 only, this is stage 2; "
        "remove it or write stage 3",
    ),
    (
        '{"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "nvme", "nvme_path": "/n"}}}',
        "zero_optimization.offload_optimizer: {'device': 'nvme', 'nvme_path': '/n'}: "
        "not supported by samecurve, whose checkpoints read the optimizer's state; write cpu",
    ),
    (
        f'{{{Z}, "fp16": {{"enabled": true}}, "bf16": {{"enabled": true}}}}',
        "bf16.enabled: true: disagrees with ds.json:1 (fp16.enabled); enable one of them",
    ),
    (f'{{{Z}, "fp16": {{"enabled": "yes"}}}}', "fp16.enabled: 'yes': must be true or false"),
    (f'{{{Z}, "fp16": true}}', "fp16: true: must be a mapping"),
    (
        f'{{{Z}, "fp16": {{"enabled": true, "loss_scale": -1}}}}',
        "fp16.loss_scale: -1: must be at least 0",
    ),
    (
        f'{{{Z}, "gradient_allreduce_op": "sum"}}',
        "gradient_allreduce_op: 'sum': the gradient here is the mean over the global batch; remove it",
    ),
    *[
        (f'{{{Z}, "{key}": {json.dumps(value)}}}', f"{key}: {value}: not supported by samecurve; remove it")
        for key, value in {
            "elasticity": {"enabled": True},
            "autotuning": {"enabled": True},
            "tensor_parallel": {"autotp_size": 2},
            "pipeline": {"stages": 2},
            "sequence_parallel_size": 2,
            "torch_autocast": {"enabled": True},
        }.items()
    ],
    (f'{{{Z}, "log": {{}}}}', "log: {}: unknown key; DeepSpeed's JSON has none of this name; remove it"),
    (
        f'{{{Z}, "comms_config": {{}}}}',
        "comms_config: {}: unknown key; DeepSpeed's JSON has none of this name; remove it",
    ),
    (
        f'{{{Z}, "bf16": {{"enabled": true, "loss_scale": 0}}, "fp16": {{"enabled": false, "loss_scale": 0}}}}',
        "bf16.loss_scale: 0: unknown key; bf16 needs no loss scale; remove it",
    ),
    (
        f'{{{Z}, "compile": {{"backend": "inductor"}}}}',
        "compile.backend: 'inductor': unknown key; DeepSpeed has none of this name; "
        "write compile: true in the training config, or dynamo_config in an accelerate YAML",
    ),
    *[
        (f"{{{Z}, {text}}}", f"{told}; remove it")
        for text, told in {
            '"bf16": {"enabled": true, "bf16_master_weights_and_grads": true}': (
                "bf16.bf16_master_weights_and_grads: true: weights and gradients are kept in full precision here"
            ),
            '"fp16": {"enabled": true, "fp16_master_weights_and_grads": true}': (
                "fp16.fp16_master_weights_and_grads: true: weights and gradients are kept in full precision here"
            ),
            '"managed_gradient_accumulation": false': (
                "managed_gradient_accumulation: false: gradients are accumulated by this program"
            ),
            '"dataloader_drop_last": true': "dataloader_drop_last: true: the training config says it, with drop_last",
            '"gradient_predivide_factor": 2.0': "gradient_predivide_factor: 2.0: DeepSpeed's ZeRO refuses it",
        }.items()
    ],
    (
        '{"zero_optimization": {"stage": 2, "compute_grad_norm": false}}',
        "zero_optimization.compute_grad_norm: false: the gradient norm is logged and clipped here; remove it",
    ),
    (
        '{"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "ratio": 0.3}}}',
        "zero_optimization.offload_optimizer.ratio: 0.3: needs DeepSpeed's own Adam, and torch's steps here; remove it",
    ),
    (
        f'{{{Z}, "optimizer": {{"type": "Lamb", "params": {{"lr": 1e-3, "max_coeff": 0.3}}}}}}',
        "optimizer.type: 'Lamb': not offered from a DeepSpeed JSON (AdamW, Adam, SGD are); "
        "build it in Task.build_optimizer, and remove this section",
    ),
    (
        f'{{{Z}, "train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}}',
        "train_batch_size: 10: must be a multiple of train_micro_batch_size_per_gpu x gradient_accumulation_steps, 4",
    ),
    (f"{{{Z},}}", "not valid JSON: a trailing comma: remove it"),
    ("// from a blog\n{}", "not valid JSON: a comment, which JSON has not"),
    (
        f'{{{Z}, "gradient_accumulation_steps": 2.0}}',
        "gradient_accumulation_steps: 2.0: must be a whole number; write 2",
    ),
]


@pytest.mark.parametrize(("text", "line"), JSON_MISTAKES, ids=[line for _, line in JSON_MISTAKES])
def test_a_mistake_in_json_is_one_line(write: Write, text: str, line: str) -> None:
    assert complaint(lambda: read_deepspeed_file(write("ds.json", text))) == f"ds.json:1: {line}"


def test_json_without_zero(write: Write) -> None:
    assert complaint(lambda: read_deepspeed_file(write("ds.json", '{"train_batch_size": 8}'))) == (
        "ds.json:1: zero_optimization.stage: is missing, which DeepSpeed takes as 0; "
        f'write "stage": 1, 2 or 3 ({STAGE_0})'
    )


def test_what_deepspeed_removed_is_told_in_its_words(write: Write) -> None:
    line = complaint(lambda: read_deepspeed_file(write("ds.json", f'{{{Z}, "nebula": {{}}}}')))
    assert line.startswith("ds.json:1: nebula: {}: DeepSpeed: Nebula checkpointing has been removed")


@pytest.mark.parametrize(
    ("key", "name"), [("mics_shard_size", "MiCS ZeRO-3 sharding"), ("zeropp_loco_param", "LoCo-Zero++")]
)
def test_what_deepspeed_removed_from_a_section_is_told_in_its_words(write: Write, key: str, name: str) -> None:
    text = f'{{"zero_optimization": {{"stage": 3, "{key}": 8}}}}'
    line = complaint(lambda: read_deepspeed_file(write("ds.json", text)))
    assert line.startswith(f"ds.json:1: zero_optimization.{key}: 8: DeepSpeed: {name} has been removed")
    disabled = {"enabled": False}
    off = json.dumps({"zero_optimization": {"stage": 3, key: -1}, "elasticity": disabled, "amp": disabled})
    assert read_deepspeed_file(write("off.json", off)).deepspeed == {"zero_optimization": {"stage": 3}}


# Keys that cannot change what runs


@pytest.mark.parametrize(
    "lines",
    ["", "num_processes: null\nnum_machines: null\n", "num_processes: -1\n"],
    ids=["missing", "null", "accelerate's default"],
)
def test_the_launcher_says_how_many_processes(write: Write, lines: str) -> None:
    request = read_accelerate_file(write("a.yaml", f"distributed_type: MULTI_GPU\n{lines}"))
    assert (request.strategy, request.world_size, request.num_machines) == ("ddp", None, 1)
    two = read_accelerate_file("a.yaml", overrides=flag(2, "num_processes"))
    assert two.world_size == sourced(2, "command line (--num_processes)")


def test_one_process_of_ddp(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", "distributed_type: MULTI_GPU\nnum_processes: 1\n"))
    assert (request.strategy, request.world_size) == ("ddp", sourced(1, "a.yaml:2 (num_processes)"))


def test_no_without_quotes_is_what_accelerate_takes_it_for(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", "distributed_type: NO\nnum_processes: 1\n"))
    assert (request.strategy, request.notices) == ("single", ())
    assert complaint(lambda: read_accelerate_file(write("b.yaml", "distributed_type: NO\nnum_processes: 2\n"))) == (
        "b.yaml:2: num_processes: 2: accelerate starts one process under distributed_type 'NO'; "
        "write MULTI_GPU, or num_processes: 1"
    )


def test_keys_for_tpus_share_one_line(write: Write) -> None:
    text = f"{DDP}downcast_bf16: true\ntpu_name: pod\ntpu_use_cluster: false\ntpu_env: []\ncommand_file: null\n"
    assert read_accelerate_file(write("a.yaml", text)).notices == (
        "a.yaml:3: read on TPUs only: downcast_bf16, tpu_name",
    )
    for value in ("'no'", "no", "false", "null"):
        assert read_accelerate_file(write("b.yaml", f"{DDP}downcast_bf16: {value}\n")).notices == ()


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
        "a.yaml:6: deepspeed_config.zero3_save_16bit_model: no effect: "
        "the model is written in full precision (float32)",
        "a.yaml:5: deepspeed_config.zero3_init_flag: no effect: "
        "each rank builds the whole model in host memory, then keeps its shard",
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
        "flops_profiler": {"enabled": False, "profile_step": 1, "module_depth": -1, "top_modules": 1, "detailed": True},
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


def test_an_accelerate_file_that_is_given_as_a_json_of_deepspeed(write: Write) -> None:
    path = write("a.yaml", DDP)
    assert complaint(lambda: read_deepspeed_file(path)) == (
        "a.yaml: this is an accelerate config: give it to accelerate launch, or with --accel_config"
    )


def test_reading_straight_to_a_gpu_is_no_matter_of_a_rehearsal(write: Write) -> None:
    text = '{"zero_optimization": {"stage": 3}, "aio": {"use_gds": true, "block_size": 4096}}'
    request = read_deepspeed_file(write("ds.json", text))
    assert request.deepspeed["aio"] == {"use_gds": True, "block_size": 4096}
    assert rehearsal_changes(request)[1]["aio"] == {"block_size": 4096}


def test_older_names_of_offloads(write: Write) -> None:
    zero = {"stage": 3, "cpu_offload": True, "cpu_offload_param": True, "cpu_offload_use_pin_memory": True}
    text = json.dumps({"zero_optimization": zero})
    request = read_deepspeed_file(write("ds.json", text))
    moved = {"device": "cpu", "pin_memory": True}
    assert request.deepspeed == {"zero_optimization": {"stage": 3, "offload_optimizer": moved, "offload_param": moved}}
    assert rehearsal_notices(request)[0] == (
        "ds.json:1 (zero_optimization.cpu_offload): no effect in a rehearsal: already on the CPU"
    )


@pytest.mark.parametrize(
    ("content", "flow"),
    [
        (
            {"transformer_layer_cls_to_wrap": ["GPT2Block"], "backward_prefetch": "backward_pre", "xla": False},
            "{distributed_type: FSDP, fsdp_config: {fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP, "
            "fsdp_transformer_layer_cls_to_wrap: GPT2Block, fsdp_version: 2}}",
        ),
        (
            {"fsdp": "shard_grad_op offload auto_wrap", "fsdp_config": {"min_num_params": 1000}},
            "{distributed_type: FSDP, fsdp_config: {fsdp_auto_wrap_policy: SIZE_BASED_WRAP, fsdp_min_num_params: 1000, "
            "fsdp_offload_params: true, fsdp_reshard_after_forward: false, fsdp_version: 2}}",
        ),
    ],
)
def test_a_file_for_transformers_own_trainer(write: Write, content: dict[str, Any], flow: str) -> None:
    path = write("fsdp.json", json.dumps(content))
    line = f"fsdp.json: this is a file for transformers' own Trainer; write an accelerate YAML instead: {flow}"
    for read in (read_deepspeed_file, read_accelerate_file, read_launch_file):
        assert complaint(lambda read=read: read(path)) == line
    assert read_accelerate_file(write("a.yaml", flow)).strategy == "fsdp", "which is one as it stands"


def test_a_json_is_checked_without_deepspeed(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setitem(sys.modules, "deepspeed.runtime.config", None)
    assert read_deepspeed_file(write("ds.json", json.dumps(FULL))).strategy == "zero2"
    assert read_accelerate_file(write("a.yaml", BY_FILE)).strategy == "zero2"


def test_sections_that_are_switched_off_pass(write: Write) -> None:
    off = ', "autotuning": {"enabled": false}, "torch_autocast": {"enabled": false}, "sequence_parallel_size": 1'
    assert read_deepspeed_file(write("ds.json", f"{{{Z}{off}}}")).strategy == "zero2"


def test_text_that_looks_like_a_number_may_be_text(write: Write) -> None:
    wandb = {"enabled": True, "project": "7"}
    text = json.dumps({"zero_optimization": {"stage": 1}, "wandb": wandb})
    assert read_deepspeed_file(write("ds.json", text)).deepspeed["wandb"] == wandb


# Typing errors by the hundred


def _typos(key: str) -> st.SearchStrategy[str]:
    """One letter of ``key`` left out, doubled, put in, exchanged with its neighbour or replaced."""
    at = st.integers(0, len(key) - 1)
    letter = st.sampled_from(string.ascii_lowercase)
    return st.one_of(
        at.map(lambda i: key[:i] + key[i + 1 :]),
        at.map(lambda i: key[:i] + key[i] + key[i:]),
        st.tuples(at, letter).map(lambda pair: key[: pair[0]] + pair[1] + key[pair[0] :]),
        st.tuples(at, letter).map(lambda pair: key[: pair[0]] + pair[1] + key[pair[0] + 1 :]),
        at.map(lambda i: key[:i] + key[i : i + 2][::-1] + key[i + 2 :]),
    )


def _one_letter_away(left: str, right: str) -> bool:
    if len(left) == len(right):
        different = [i for i in range(len(left)) if left[i] != right[i]]
        return len(different) == 1 or (len(different) == 2 and sorted(left) == sorted(right))
    short, long = sorted((left, right), key=len)
    return len(long) - len(short) == 1 and any(long[:i] + long[i + 1 :] == short for i in range(len(long)))


NESTED = sorted((name, key) for name in section_names() for key in accelerate_keys(name))
PATHS: list[tuple[str, ...]] = [
    (),
    ("zero_optimization",),
    ("zero_optimization", "offload_optimizer"),
    ("zero_optimization", "offload_param"),
    ("activation_checkpointing",),
    ("fp16",),
    ("bf16",),
    ("aio",),
    ("comms_logger",),
    ("flops_profiler",),
]
# With fewer letters, one less leaves nothing to recognise.
JSON_KEYS = sorted((path, key) for path in PATHS for key in deepspeed_keys(path) or () if len(key) > 4)


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_typo_in_a_nested_key_is_answered_by_the_key(data: st.DataObject, tmp_path_factory: Any) -> None:
    name, key = data.draw(st.sampled_from(NESTED))
    typo = data.draw(_typos(key))
    others = {one for section in section_names() for one in spellings(section)}
    assume(typo not in others)
    assume(not any(_one_letter_away(typo, other) for other in others - {key}))
    path = tmp_path_factory.getbasetemp() / "typo.yaml"
    path.write_text(f"{DDP}{name}:\n  {typo}: 1\n")
    line = complaint(lambda: read_accelerate_file(path)).splitlines()[0]
    assert line == f"{path}:4: {name}.{typo}: 1: unknown key; did you mean {key!r}?"


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_typo_in_json_is_answered_by_the_key(data: st.DataObject, tmp_path_factory: Any) -> None:
    path, key = data.draw(st.sampled_from(JSON_KEYS))
    typo = data.draw(_typos(key))
    known = set(deepspeed_keys(path) or ()) | set(deepspeed_keys(("zero_optimization",)) or ())
    assume(typo not in known)
    assume(not any(_one_letter_away(typo, other) for other in known - {key}))
    content: dict[str, Any] = {"zero_optimization": {"stage": 3}}
    section = content
    for part in path:
        section = section.setdefault(part, {})
    section[typo] = 7
    file = tmp_path_factory.getbasetemp() / "typo.json"
    file.write_text(json.dumps(content))
    lines = complaint(lambda: read_deepspeed_file(file)).splitlines()
    assert f"{file}:1: {'.'.join((*path, typo))}: 7: unknown key; did you mean {key!r}?" in lines


def test_known_keys_are_deepspeeds_own() -> None:
    fields = DeepSpeedZeroConfig.model_fields
    aliases = {field.alias for field in fields.values() if field.alias}
    assert set(deepspeed_keys(("zero_optimization",)) or ()) == set(fields) | aliases
    assert {"optimizer", "aio", "wandb", "train_batch_size"} <= set(deepspeed_keys(()) or ())


def test_all_keys_of_a_written_accelerate_file_are_known(write: Write) -> None:
    """Also those that have no argument of the launcher."""
    assert "fsdp_ignored_modules" in accelerate_keys("fsdp_config")
    assert "ignored_modules" in spellings("fsdp_config")
    assert "tp_size" not in spellings("parallelism_config")


# The launcher's command line


def test_flags_are_read_by_accelerates_parser(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accelerate.commands.config.config_args.default_config_file", "/nonexistent")
    argv = ["--config_file", "a.yaml", "--num-processes", "4", "--use_fsdp", "train.py", "--num_processes", "9"]
    path, flags = read_launch_flags(argv)
    assert path == "a.yaml"
    assert flags == flag(4, "num_processes") | flag(True, "use_fsdp")
    assert read_launch_flags(["train.py"]) == (None, {})


def test_default_file_counts_where_it_exists(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    default = write("default_config.yaml", DDP)
    monkeypatch.setattr("accelerate.commands.config.config_args.default_config_file", default)
    assert read_launch_flags(["train.py"]) == (default, {})
    assert read_launch_flags(["--config_file", "a.yaml", "train.py"])[0] == "a.yaml"
    assert read_launch_flags(["--cpu", "train.py"]) == (None, flag(True, "cpu"))


def test_flags_that_accelerate_refuses() -> None:
    with pytest.raises(ConfigError) as caught:
        read_launch_flags(["--num_processes", "two", "train.py"])
    expected = "command line: accelerate launch: argument --num_processes/--num-processes: invalid int value: 'two'"
    assert str(caught.value) == expected


def test_a_flag_wins_over_its_file(write: Write) -> None:
    path = write("a.yaml", f"{DDP}mixed_precision: bf16\nfsdp_config:\n  fsdp_version: 1\n")
    typed = (
        flag(4, "num_processes") | flag("no", "mixed_precision") | flag(True, "use_fsdp") | flag("2", "fsdp_version")
    )
    request = read_accelerate_file(path, overrides=typed)
    assert (request.strategy, str(request.strategy_origin)) == ("fsdp", "command line (--use_fsdp)")
    assert request.world_size == sourced(4, "command line (--num_processes)")
    assert request.mixed_precision == sourced("no", "command line (--mixed_precision)")
    assert request.notices == ()


@pytest.mark.parametrize(
    ("typed", "line"),
    [
        (flag(0, "num_processes"), "command line: --num_processes: 0: must be at least 1"),
        (
            flag(2, "zero_stage"),
            "command line: --zero_stage: 2: has no effect without --use_deepspeed; add that, or remove this",
        ),
        (
            flag("2", "fsdp_version"),
            "command line: --fsdp_version: '2': has no effect without --use_fsdp; add that, or remove this",
        ),
        (
            flag(True, "cpu"),
            "command line: --cpu: true: makes accelerate start one process; leave it out: "
            "without a GPU the job rehearses on the CPU",
        ),
        (
            flag(True, "multi_gpu") | flag(True, "use_fsdp"),
            "command line: --use_fsdp: true: cannot stand beside --multi_gpu; keep one of them",
        ),
        (
            flag(True, "use_megatron_lm"),
            "command line: --use_megatron_lm: true: not supported by samecurve; "
            "supported: cpu, multi_gpu, use_deepspeed, use_fsdp",
        ),
        (
            flag(True, "use_deepspeed") | flag(4, "zero_stage"),
            "command line: --zero_stage: 4: must be 1, 2 or 3",
        ),
    ],
)
def test_a_mistake_in_flags_is_one_line(write: Write, typed: dict[str, Sourced[Any]], line: str) -> None:
    assert complaint(lambda: read_accelerate_file(write("a.yaml", DDP), overrides=typed)) == line


def test_flag_beside_a_json(write: Write) -> None:
    write("ds.json", json.dumps(FULL))
    typed = flag(True, "use_deepspeed") | flag("ds.json", "deepspeed_config_file") | flag(2, "num_processes")
    assert read_request(None, typed).strategy == "zero2"
    assert complaint(lambda: read_request(None, typed | flag(3, "zero_stage"))) == (
        "command line: --zero_stage: 3: stands beside --deepspeed_config_file at command line, which must say it; "
        "remove it here"
    )
    full = json.dumps({**FULL, "bf16": {"enabled": True}, "fp16": {"enabled": False}})
    write("ds.json", full)
    assert complaint(lambda: read_request(None, typed | flag("no", "mixed_precision"))) == (
        "command line: --mixed_precision: 'no': disagrees with 'bf16' at ds.json:1 (bf16.enabled); keep one of them"
    )


def test_launch_without_a_file(gpus: Callable[[int], None]) -> None:
    gpus(0)
    single = read_request(None, {})
    assert (single.strategy, single.files) == ("single", ())
    assert single.world_size == sourced(1, "command line (accelerate launch)")
    on_cpu = read_request(None, flag(True, "cpu"))
    assert (on_cpu.strategy, on_cpu.use_cpu) == ("single", True)
    ddp = read_request(None, flag(True, "multi_gpu") | flag(2, "num_processes"))
    assert (ddp.strategy, ddp.world_size) == ("ddp", sourced(2, "command line (--num_processes)"))


def test_launch_without_a_file_on_gpus(gpus: Callable[[int], None]) -> None:
    """As in Accelerate: several GPUs mean DDP on all of them, unless one process is asked for."""
    gpus(4)
    every = read_request(None, {})
    assert (every.strategy, every.world_size) == (
        "ddp",
        sourced(4, "command line (every GPU of this machine)"),
    )
    assert read_request(None, flag(1, "num_processes")).strategy == "single"


def test_launch_without_a_file_starts_one_process(gpus: Callable[[int], None]) -> None:
    gpus(0)
    assert complaint(lambda: read_request(None, flag(2, "num_processes"))) == (
        "command line: --num_processes: 2: accelerate starts one process without --multi_gpu; add it"
    )
    assert complaint(lambda: read_request(None, flag(True, "cpu") | flag(2, "num_processes"))) == (
        "command line: --num_processes: 2: --cpu makes accelerate start one process; leave it out: "
        "without a GPU the job rehearses on the CPU"
    )
    assert complaint(lambda: read_request(None, flag(True, "use_fsdp"))) == (
        "command line: --num_processes: is missing; write how many processes run"
    )


# A rehearsal on the CPU


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
    assert [rehearsal_precision("zero3", "fp16"), rehearsal_precision("ddp", "fp16")] == ["bf16", "fp16"]


def test_rehearsal_of_accelerates_own_keys(write: Write) -> None:
    zero = read_accelerate_file(write("a.yaml", f"{ZERO}  zero_stage: 2\n  offload_optimizer_device: cpu\n"))
    home = "a.yaml:5 (deepspeed_config.offload_optimizer_device)"
    assert rehearsal_notices(zero) == (f"{home}: no effect in a rehearsal: already on the CPU",)
    fsdp = read_accelerate_file(write("b.yaml", f"{FSDP}  fsdp_offload_params: true\n"))
    home = "b.yaml:5 (fsdp_config.fsdp_offload_params)"
    assert rehearsal_notices(fsdp) == (f"{home}: no effect in a rehearsal: already on the CPU",)
    assert rehearsal_notices(read_accelerate_file(write("c.yaml", DDP))) == ()


# Files as they are


STRATEGIES = {"single": "single", "ddp": "ddp", "fsdp": "fsdp", "zero3_offload": "zero3"}


@pytest.mark.parametrize("path", sorted((ROOT / "accel_configs").glob("*")), ids=lambda path: path.name)
def test_committed_accelerate_files(path: Path) -> None:
    request = read_accelerate_file(path)
    assert request.strategy == STRATEGIES.get(path.stem, path.stem)
    assert request.world_size is not None
    assert request.world_size.value == (1 if path.stem == "single" else 2)
    assert request.mixed_precision is None, "the training config says it"
    assert request.notices == ()
    assert path.read_text().startswith("#")
    assert ("offload_param" in request.deepspeed.get("zero_optimization", {})) == path.stem.endswith("offload")
    assert load_config_from_file(str(path)).num_processes == request.world_size.value


@pytest.mark.parametrize("path", sorted((ROOT / "ds_configs").glob("*")), ids=lambda path: path.name)
def test_committed_deepspeed_files(path: Path) -> None:
    request = read_deepspeed_file(path)
    assert request.strategy == STRATEGIES.get(path.stem, path.stem)
    assert (request.micro_batch_size, request.accumulation_steps, request.max_grad_norm) == (None, None, None)
    assert request.mixed_precision is None


def test_every_strategy_has_its_files() -> None:
    zero = ["zero1", "zero2", "zero3", "zero3_offload"]
    assert sorted(path.stem for path in (ROOT / "accel_configs").glob("*")) == ["ddp", "fsdp", "single", *zero]
    assert sorted(path.stem for path in (ROOT / "ds_configs").glob("*")) == zero


@pytest.mark.parametrize("path", sorted(WRITTEN.glob("*.yaml")), ids=lambda path: path.name)
def test_real_accelerate_files(path: Path) -> None:
    """On two processes each runs, or, with one process by its type, is answered with one line."""
    written = yaml.safe_load(path.read_text())
    two = flag(2, "num_processes")
    if written["distributed_type"] == "NO":
        assert "accelerate starts one process" in complaint(lambda: read_accelerate_file(path, overrides=two))
        assert read_accelerate_file(path, overrides=flag(1, "num_processes")).strategy == "single"
        return
    request = read_accelerate_file(path, overrides=two)
    stage = (written.get("deepspeed_config") or {}).get("zero_stage")
    assert (
        request.strategy
        == {"MULTI_GPU": "ddp", "FSDP": "fsdp", "DEEPSPEED": f"zero{stage}"}[written["distributed_type"]]
    )
    assert request.mixed_precision is not None
    assert request.mixed_precision.value == written["mixed_precision"]


@pytest.mark.parametrize("path", sorted(WRITTEN.glob("*.json")), ids=lambda path: path.name)
def test_real_deepspeed_files(path: Path) -> None:
    written = json.loads(path.read_text())
    request = read_deepspeed_file(path)
    assert request.strategy == f"zero{written['zero_optimization']['stage']}"
    assert request.mixed_precision is not None
    assert request.mixed_precision.value == "fp16"
    assert '"auto"' not in json.dumps(request.deepspeed)
    # DeepSpeed reads what is left, and understands the same stage.
    read = DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, **request.deepspeed})
    assert read.zero_config.stage == written["zero_optimization"]["stage"]
