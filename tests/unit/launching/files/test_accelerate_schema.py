"""The keys of an accelerate file, as the installed Accelerate gives them."""

from __future__ import annotations

from dataclasses import fields

from accelerate import FullyShardedDataParallelPlugin
from accelerate.commands.config.config_args import ClusterConfig
from accelerate.commands.launch import launch_command_parser
from accelerate.utils import TorchDynamoPlugin

from trainer.launching.files import accelerate_file, accelerate_schema, fsdp_file
from trainer.launching.files.accelerate_schema import TOP_LEVEL, key_types, sections


def test_every_key_of_accelerates_config_is_known() -> None:
    assert {*key_types(), *sections()} - {"fp16", "dynamo_backend"} == {
        field.name for field in fields(ClusterConfig)
    }


def test_every_section_has_the_arguments_of_the_launcher() -> None:
    assert {"zero_stage", "gradient_clipping", "zero3_init_flag"} <= set(
        key_types("deepspeed_config")
    )
    assert {"fsdp_version", "fsdp_ignored_modules"} <= set(key_types("fsdp_config"))
    assert "parallelism_config_tp_size" in key_types("parallelism_config")
    for section in sections():
        assert key_types(section)


def test_own_types_are_for_keys_that_accelerate_has() -> None:
    without_argument = {"fsdp_ignored_modules"}
    older = {"fp16", "dynamo_backend"}  # Accelerate converts these before it compares
    arguments = set(vars(launch_command_parser().parse_args(["train.py"])))
    top_level = {field.name for field in fields(ClusterConfig)}
    for section, types in accelerate_schema._OWN_TYPES.items():
        known = top_level | older if section == TOP_LEVEL else arguments | without_argument
        assert set(types) <= known


def test_arguments_of_the_plugins_exist() -> None:
    plugin = {field.name for field in fields(FullyShardedDataParallelPlugin)}
    assert {*fsdp_file._ARGUMENTS, *fsdp_file._FIXED} <= plugin
    assert set(accelerate_file._DYNAMO_ARGUMENTS) <= {f.name for f in fields(TorchDynamoPlugin)}
    default = launch_command_parser().get_default("fsdp_min_num_params")
    assert fsdp_file._ARGUMENTS["min_num_params"][1] == default


def test_every_sharding_strategy_has_an_answer() -> None:
    assert list(fsdp_file._STRATEGIES) == accelerate_schema.sharding_strategies()
