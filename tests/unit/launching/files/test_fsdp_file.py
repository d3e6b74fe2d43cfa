"""The FSDP section of an Accelerate file: every argument it gives, and FSDP1 as FSDP2."""

from __future__ import annotations

import pytest
from accelerate import FullyShardedDataParallelPlugin
from launch_texts import FSDP, FSDP1, Write, complaint

from trainer.launching.files.accelerate_file import read_accelerate_file


def test_fsdp_gives_every_argument(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stray FSDP_* variables change nothing, since the plugin is given every argument that reads
    one.
    """
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
        ("fsdp_sharding_strategy: 2", False),
        ("fsdp_reshard_after_forward: SHARD_GRAD_OP", False),
        ("fsdp_reshard_after_forward: false", False),
    ],
)
def test_fsdp1_maps_to_fsdp2(write: Write, line: str, reshards: bool) -> None:
    request = read_accelerate_file(write("a.yaml", f"{FSDP1}  {line}\n"))
    assert (request.fsdp["fsdp_version"], request.fsdp["reshard_after_forward"]) == (2, reshards)
    assert request.notices == (
        "a.yaml:4: fsdp_config.fsdp_version: FSDP1 runs as FSDP2; write fsdp_version: 2",
    )


def test_fsdp_without_version_is_mapped_and_said(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", "distributed_type: FSDP\nnum_processes: 2\n"))
    told = "no fsdp_version, which accelerate takes as 1: runs as FSDP2; write fsdp_version: 2"
    assert request.notices == (f"a.yaml:1 (distributed_type): {told}",)


def test_keys_that_fsdp2_does_not_have_share_one_line(write: Write) -> None:
    text = (
        f"{FSDP}  fsdp_use_orig_params: true\n  fsdp_forward_prefetch: false\n"
        "  fsdp_cpu_ram_efficient_loading: true\n  fsdp_state_dict_type: FULL_STATE_DICT\n"
    )
    assert read_accelerate_file(write("a.yaml", text)).notices == (
        "a.yaml:5: no effect under FSDP2: fsdp_use_orig_params, fsdp_cpu_ram_efficient_loading",
    )


def test_keys_of_another_wrap_policy_share_one_line(write: Write) -> None:
    text = f"{FSDP}  fsdp_transformer_layer_cls_to_wrap: Block\n  fsdp_min_num_params: 1000\n"
    request = read_accelerate_file(write("a.yaml", text))
    assert request.notices == (
        "a.yaml:5: no effect under fsdp_auto_wrap_policy NO_WRAP: "
        "fsdp_transformer_layer_cls_to_wrap, fsdp_min_num_params",
    )
    assert request.fsdp["transformer_cls_names_to_wrap"] is None


def test_groups_hold_the_model_each(write: Write) -> None:
    text = f"{FSDP}parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n"
    request = read_accelerate_file(write("a.yaml", text))
    assert request.fsdp["dp_replicate_size"] == 2
    assert str(request.origins["fsdp.dp_replicate_size"]).startswith("a.yaml:6")


SECTION = "a.yaml:5: fsdp_config."
# One line for each rule: what is in the file, and the message.
MISTAKES = [
    (
        FSDP.replace("fsdp_version: 2", "fsdp_version: 3"),
        "a.yaml:4: fsdp_config.fsdp_version: 3: must be 2, or 1, which runs as FSDP2",
    ),
    (
        f"{FSDP1}  fsdp_sharding_strategy: NO_SHARD",
        f"{SECTION}fsdp_sharding_strategy: 'NO_SHARD': NO_SHARD is DDP: "
        "write distributed_type: MULTI_GPU",
    ),
    (
        f"{FSDP1}  fsdp_sharding_strategy: HYBRID_SHARD",
        f"{SECTION}fsdp_sharding_strategy: 'HYBRID_SHARD': hybrid sharding is parallelism_config "
        "under FSDP2: write there parallelism_config_dp_replicate_size and "
        "parallelism_config_dp_shard_size, and here fsdp_reshard_after_forward: true",
    ),
    (
        f"{FSDP1}  fsdp_sharding_strategy: FULL_SHARDS",
        f"{SECTION}fsdp_sharding_strategy: 'FULL_SHARDS': must be one of 'FULL_SHARD', "
        "'SHARD_GRAD_OP', 'NO_SHARD', 'HYBRID_SHARD', 'HYBRID_SHARD_ZERO2'; "
        "did you mean 'FULL_SHARD'?",
    ),
    (
        f"{FSDP1}  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_reshard_after_forward: false",
        f"{SECTION}fsdp_sharding_strategy: 'FULL_SHARD': disagrees with false at a.yaml:6 "
        "(fsdp_config.fsdp_reshard_after_forward); keep fsdp_reshard_after_forward",
    ),
    (
        f"{FSDP}  fsdp_sharding_strategy: SHARD_GRAD_OP",
        f"{SECTION}fsdp_sharding_strategy: 'SHARD_GRAD_OP': FSDP2 has no sharding strategy; "
        "write fsdp_reshard_after_forward: false",
    ),
    (
        f"{FSDP}  fsdp_reshard_after_forward: FULL_SHARD",
        f"{SECTION}fsdp_reshard_after_forward: 'FULL_SHARD': "
        "must be true (FULL_SHARD) or false (SHARD_GRAD_OP) under fsdp_version 2",
    ),
    (
        f"{FSDP}  fsdp_activation_checkpointing_offload: true",
        f"{SECTION}fsdp_activation_checkpointing_offload: true: "
        "needs fsdp_activation_checkpointing: true",
    ),
    (
        f"{FSDP}  fsdp_transformer_layer_cls_to_wrap: 3",
        f"{SECTION}fsdp_transformer_layer_cls_to_wrap: 3: "
        "must be class names, as a list or separated by commas",
    ),
    (
        f"{FSDP}  fsdp_state_dict_type: LOCAL_STATE_DICT",
        f"{SECTION}fsdp_state_dict_type: 'LOCAL_STATE_DICT': "
        "must be one of 'SHARDED_STATE_DICT', 'FULL_STATE_DICT'; did you mean 'FULL_STATE_DICT'?",
    ),
    (
        f"{FSDP}parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n"
        "  parallelism_config_dp_shard_size: 4",
        "a.yaml:7: parallelism_config.parallelism_config_dp_shard_size: 4: "
        "times dp_replicate_size 2 must be the number of processes, 2",
    ),
]


@pytest.mark.parametrize(("text", "line"), MISTAKES, ids=[line for _, line in MISTAKES])
def test_a_mistake_is_one_line(write: Write, text: str, line: str) -> None:
    assert complaint(lambda: read_accelerate_file(write("a.yaml", text))) == line
