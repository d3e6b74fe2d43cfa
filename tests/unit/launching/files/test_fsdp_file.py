"""The FSDP section of an accelerate file: what FSDP2 runs with, and what cannot run."""

from __future__ import annotations

import pytest
from launch_texts import FSDP, FSDP1, Write, complaint

from trainer.launching.files.accelerate_file import read_accelerate_file


def test_every_setting_is_given(write: Write) -> None:
    text = FSDP + "".join(
        f"  {line}\n"
        for line in (
            "fsdp_offload_params: 'true'",
            "fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
            "transformer_layer_cls_to_wrap: LlamaDecoderLayer, Other",
            "fsdp_activation_checkpointing: true",
            "fsdp_activation_checkpointing_offload: true",
            "fsdp_use_orig_params: true",
        )
    )
    request = read_accelerate_file(write("a.yaml", text))
    assert request.notices == ()
    assert request.fsdp == {
        "reshard_after_forward": True,
        "cpu_offload": True,
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        "transformer_cls_names_to_wrap": ["LlamaDecoderLayer", "Other"],
        "min_num_params": 100_000_000,
        "activation_checkpointing": True,
        "activation_checkpointing_offload": True,
    }


@pytest.mark.parametrize(
    ("head", "line", "reshards"),
    [
        (FSDP1, "fsdp_sharding_strategy: FULL_SHARD", True),
        (FSDP1, "fsdp_sharding_strategy: 2", False),
        (FSDP1, "fsdp_reshard_after_forward: SHARD_GRAD_OP", False),
        (FSDP1, "fsdp_reshard_after_forward: false", False),
        (FSDP1, "fsdp_state_dict_type: LOCAL_STATE_DICT", True),
        (FSDP, "fsdp_reshard_after_forward: 'False'", False),
        (FSDP, "fsdp_sharding_strategy: FULL_SHARD", True),
    ],
)
def test_when_parameters_are_freed(write: Write, head: str, line: str, reshards: bool) -> None:
    request = read_accelerate_file(write("a.yaml", f"{head}  {line}\n"))
    assert request.fsdp["reshard_after_forward"] == reshards
    told = "a.yaml:4: FSDP1 runs as FSDP2; write fsdp_version: 2"
    assert request.notices == ((told,) if head is FSDP1 else ())


def test_fsdp_without_version_is_mapped_and_said(write: Write) -> None:
    request = read_accelerate_file(write("a.yaml", "distributed_type: FSDP\nnum_processes: 2\n"))
    assert request.notices == ("a.yaml:1: FSDP1 runs as FSDP2; write fsdp_version: 2",)


def test_classes_count_under_their_own_policy_only(write: Write) -> None:
    text = f"{FSDP}  fsdp_transformer_layer_cls_to_wrap: Block\n"
    assert read_accelerate_file(write("a.yaml", text)).fsdp["transformer_cls_names_to_wrap"] is None


def test_groups_hold_the_model_each(write: Write) -> None:
    text = f"{FSDP}parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n"
    request = read_accelerate_file(write("a.yaml", text))
    assert request.fsdp["dp_replicate_size"] == 2
    assert str(request.origins["fsdp.dp_replicate_size"]).startswith("a.yaml:6")
    text = text.replace("num_processes: 2\n", "") + "  parallelism_config_dp_shard_size: 4\n"
    world = read_accelerate_file(write("b.yaml", text)).world_size
    assert world is not None and (world.value, world.origin.line) == (8, 6)


SECTION = "a.yaml:5: fsdp_config."
STRATEGY = (
    "must be true or false (for FSDP1: FULL_SHARD or SHARD_GRAD_OP); NO_SHARD is distributed_type: "
)
# One line for each rule: the lines in the file, and the message.
MISTAKES = [
    (
        FSDP.replace(": 2\n", ": 3\n"),
        "a.yaml:4: fsdp_config.fsdp_version: 3: must be less than or equal to 2",
    ),
    (f"{FSDP}  fsdp_versoin: 2", f"{SECTION}fsdp_versoin: 2: unknown key; did you mean 'fsdp_v"),
    (
        f"{FSDP}  fsdp_ignored_modules: head",
        f"{SECTION}fsdp_ignored_modules: 'head': not supported by samecurve; remove it",
    ),
    (f"{FSDP1}  fsdp_sharding_strategy: HYBRID_SHARD", STRATEGY),
    (
        f"{FSDP1}  fsdp_sharding_strategy: FULL_SHARD\n  fsdp_reshard_after_forward: false",
        f"{SECTION}fsdp_sharding_strategy: 'FULL_SHARD': disagrees with fsdp_reshard_after_forward; "
        "remove one",
    ),
    (
        f"{FSDP}  fsdp_sharding_strategy: SHARD_GRAD_OP",
        f"{SECTION}fsdp_sharding_strategy: 'SHARD_GRAD_OP': {STRATEGY}",
    ),
    (f"{FSDP}  fsdp_reshard_after_forward: SHARD_GRAD_OP", STRATEGY),
    (
        f"{FSDP}parallelism_config:\n  parallelism_config_dp_replicate_size: 2\n"
        "  parallelism_config_dp_shard_size: 4",
        "a.yaml:2: num_processes: 2: must be 8 under a.yaml:7 "
        "(parallelism_config.parallelism_config_dp_shard_size); change one of the two",
    ),
    (
        f"{FSDP}parallelism_config:\n  parallelism_config_cp_size: 2\n"
        "  parallelism_config_dp_shard_size: 2",
        "a.yaml:2: num_processes: 2: must be 4 under a.yaml:7 "
        "(parallelism_config.parallelism_config_dp_shard_size); change one of the two",
    ),
]


@pytest.mark.parametrize(("text", "line"), MISTAKES, ids=[line for _, line in MISTAKES])
def test_a_mistake_is_one_line(write: Write, text: str, line: str) -> None:
    said = complaint(lambda: read_accelerate_file(write("a.yaml", text)))
    assert line in said and "\n" not in said
