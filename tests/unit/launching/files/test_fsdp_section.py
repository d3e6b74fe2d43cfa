"""The FSDP section of an Accelerate file: every argument it gives, and FSDP1 as FSDP2."""

from __future__ import annotations

import pytest
from accelerate import FullyShardedDataParallelPlugin
from launch_texts import FSDP, FSDP1, Write

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
    assert request.notices == (
        "a.yaml:4: fsdp_config.fsdp_version: FSDP1 runs as FSDP2; write fsdp_version: 2",
    )


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
        "a.yaml:7: fsdp_config.fsdp_cpu_ram_efficient_loading: no effect: "
        "the model is whole in host memory if build_model gives it values, never on the meta device",
        "a.yaml:8: fsdp_config.fsdp_state_dict_type: no effect: "
        "in checkpoints each rank writes its part; the model is exported whole",
        "a.yaml:5: no effect under FSDP2: fsdp_use_orig_params, fsdp_forward_prefetch",
    )
