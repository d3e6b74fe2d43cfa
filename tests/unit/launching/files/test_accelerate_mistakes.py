"""Accelerate files: every mistake with its one line."""

from __future__ import annotations

import json

import pytest
from launch_texts import BY_FILE, DDP, FSDP, FSDP1, ZERO, Write, complaint

from trainer.launching.files.accelerate_file import read_accelerate_file

NO_TYPE = "must be a type that samecurve runs"
SEVERAL = "write 1, or ask for distributed_type: MULTI_GPU (--multi_gpu), which rehearses on the CPU where there is no GPU"
BESIDE = "stands beside a.yaml:{} (deepspeed_config.deepspeed_config_file), which must say it; remove it here"
MISTAKES = [
    (
        f"{DDP}mixed_precison: bf16",
        "a.yaml:3: mixed_precison: 'bf16': unknown key; did you mean 'mixed_precision'?",
    ),
    (
        f"{DDP}zero_stage: 3",
        "a.yaml:3: zero_stage: 3: unknown key; it belongs under deepspeed_config",
    ),
    (
        f"{ZERO}  zero_stge: 3",
        "a.yaml:4: deepspeed_config.zero_stge: 3: unknown key; did you mean 'zero_stage'?",
    ),
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
    (
        "distributed_type: MULTI_GPU\nnum_processes: 0",
        "a.yaml:2: num_processes: 0: must be at least 1",
    ),
    (
        "distributed_type: MULTI_GPU\nnum_processes: true",
        "a.yaml:2: num_processes: true: must be a whole number",
    ),
    (f"{DDP}num_machines: 3", "a.yaml:2: num_processes: 2: must be a multiple of num_machines 3"),
    (
        "distributed_type: 'NO'\nnum_processes: 2",
        f"a.yaml:2: num_processes: 2: accelerate starts one process under a.yaml:1 (distributed_type); {SEVERAL}",
    ),
    (
        "distributed_type: DDP\nnum_processes: 2",
        f"a.yaml:1: distributed_type: 'DDP': {NO_TYPE}; accelerate calls it MULTI_GPU",
    ),
    (
        "distributed_type: ZeRO-3\nnum_processes: 2",
        f"a.yaml:1: distributed_type: 'ZeRO-3': {NO_TYPE}; accelerate calls it DEEPSPEED, and says the stage under "
        "deepspeed_config",
    ),
    (
        "distributed_type: deepspeed\nnum_processes: 2",
        f"a.yaml:1: distributed_type: 'deepspeed': {NO_TYPE}; did you mean 'DEEPSPEED'?",
    ),
    (
        "distributed_type: MULTI_CPU\nnum_processes: 2",
        f"a.yaml:1: distributed_type: 'MULTI_CPU': {NO_TYPE}; accelerate starts one process for it; write MULTI_GPU "
        "with use_cpu: false, which rehearses on the CPU where there is no GPU, or for one process 'NO' with use_cpu: "
        "true",
    ),
    (
        "distributed_type: XLA\nnum_processes: 2",
        f"a.yaml:1: distributed_type: 'XLA': {NO_TYPE}; known: DEEPSPEED, FSDP, MULTI_GPU, NO",
    ),
    (
        "num_processes: 2",
        f"a.yaml: distributed_type: {NO_TYPE}; known: DEEPSPEED, FSDP, MULTI_GPU, NO",
    ),
    (
        "compute_environment: AMAZON_SAGEMAKER\ndistributed_type: 'NO'",
        "a.yaml:1: compute_environment: 'AMAZON_SAGEMAKER': must be one of 'LOCAL_MACHINE'",
    ),
    (
        f"{DDP}mixed_precision: no",
        "a.yaml:3: mixed_precision: false: must be one of 'no', 'bf16', 'fp16'; write 'no' in quotes, "
        "for YAML reads a bare no as false",
    ),
    (
        f"{DDP}mixed_precision: fp8",
        "a.yaml:3: mixed_precision: 'fp8': must be one of 'no', 'bf16', 'fp16'",
    ),
    (
        f"{DDP}mixed_precision: bf61",
        "a.yaml:3: mixed_precision: 'bf61': must be one of 'no', 'bf16', 'fp16'; did you mean 'bf16'?",
    ),
    (
        f"{DDP}mixed_precision: bf16\nfp16: true",
        "a.yaml:4: fp16: true: disagrees with 'bf16' at a.yaml:3 (mixed_precision); remove it",
    ),
    (
        f"{DDP}use_cpu: 'false'",
        "a.yaml:3: use_cpu: 'false': must be true or false; remove the quotes",
    ),
    (
        f"{DDP}main_process_port: '1'",
        "a.yaml:3: main_process_port: '1': must be a whole number; remove the quotes",
    ),
    (f"{DDP}gpu_ids: 0", "a.yaml:3: gpu_ids: 0: must be text; put it in quotes"),
    (f"{DDP}debug: 1", "a.yaml:3: debug: 1: must be true or false"),
    (
        f"{DDP}parallelism_config:\n  parallelism_config_cp_size: 2",
        "a.yaml:4: parallelism_config.parallelism_config_cp_size: 2: "
        "more than 1 is not supported by samecurve: torch has no kernel of context-parallel attention for the CPU, "
        "where it would be rehearsed; write 1, or remove it",
    ),
    (
        f"{DDP}parallelism_config:\n  parallelism_config_tp_size: 2",
        "a.yaml:4: parallelism_config.parallelism_config_tp_size: 2: more than 1 runs with FSDP2 only: write "
        "distributed_type: FSDP, or remove it",
    ),
    (
        f"{FSDP}parallelism_config:\n  parallelism_config_dp_shard_size: 2\n  parallelism_config_tp_size: 2",
        "a.yaml:6: parallelism_config.parallelism_config_dp_shard_size: 2: times tp_size 2 must be the number of "
        "processes, 2",
    ),
    (
        "zero_optimization: {stage: 2}",
        "a.yaml: this is a DeepSpeed config: give it with --deepspeed",
    ),
    (
        '{"train_batch_size": "auto", "fp16": {"enabled": false}, "optimizer": {"type": "Adam"}, "_comment": 1}',
        "a.yaml: this is a DeepSpeed config: give it with --deepspeed",
    ),
    (f"{DDP}fsdp_config: [1]", "a.yaml:3: fsdp_config: [1]: must be a mapping"),
    (
        f"{FSDP}  2: true",
        "a.yaml:5: fsdp_config.2: true: unknown key; accelerate's config file has none of this name; remove it",
    ),
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
        "under FSDP2: write there parallelism_config_dp_replicate_size and parallelism_config_dp_shard_size, and here "
        "fsdp_reshard_after_forward: true",
    ),
    (
        f"{FSDP}parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n  parallelism_config_dp_shard_size: 4",
        "a.yaml:7: parallelism_config.parallelism_config_dp_shard_size: 4: times dp_replicate_size 2 must be the "
        "number of processes, 2",
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
    (f"{ZERO}  zero_stage: 4", "a.yaml:4: deepspeed_config.zero_stage: 4: must be 0, 1, 2 or 3"),
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
        "a.yaml:4: deepspeed_config.deepspeed_config_file: 'missing.json': does not exist; "
        "accelerate looks for it from the current folder, not from that of this file",
    ),
    (
        f"{BY_FILE}  zero_stage: 3",
        f"a.yaml:5: deepspeed_config.zero_stage: 3: {BESIDE.format(4)}",
    ),
    (
        f"mixed_precision: bf16\n{BY_FILE}",
        f"a.yaml:1: mixed_precision: 'bf16': {BESIDE.format(5)}",
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
        "a.yaml:3: _comment: 'two GPUs': unknown key; accelerate refuses it; write a # comment instead",
    ),
    (
        "distributed_type: MULTI_GPU\nnum_processes: 010",
        "a.yaml:2: num_processes: 010: YAML takes it to the base 8; write a plain number, or '010' in quotes if it is "
        "text",
    ),
    ("", "a.yaml: the accelerate config file is empty"),
    ("- 1\n", "a.yaml: the root of the accelerate config file must be a mapping, not a list"),
    (
        f"{DDP}fsdp_config:\n\tfsdp_version: 2",
        "a.yaml:4: not valid YAML: a tab: YAML is indented with spaces only",
    ),
    (
        f"{DDP}num_processes: 4",
        "a.yaml:3: num_processes: the key stands twice, first on line 2; keep one",
    ),
]


@pytest.mark.parametrize(("text", "line"), MISTAKES, ids=[line for _, line in MISTAKES])
def test_a_mistake_is_one_line(write: Write, text: str, line: str) -> None:
    write("ds.json", json.dumps({"zero_optimization": {"stage": 2}}))
    assert complaint(lambda: read_accelerate_file(write("a.yaml", text))) == line
