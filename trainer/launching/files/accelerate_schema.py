"""The keys that an accelerate file may hold, asked of the installed Accelerate.

The top level is Accelerate's dataclass ``ClusterConfig``. A key of a nested section is an argument
of ``accelerate launch``, so its parser knows these; Accelerate itself never checks them.
"""

from __future__ import annotations

import argparse
import functools
import typing
from typing import Annotated, Any, Literal

from ...config.annotations import About
from ...private.python import argument_groups_of, arguments_of

TOP_LEVEL = "top_level"

_AT_LEAST_ONE = Annotated[int, About(minimum=1)]
_NOT_NEGATIVE = Annotated[int, About(minimum=0)]
_FLAG = Annotated[bool, About(any_case=True)]  # true or false, in quotes as well
_OFFLOAD_DEVICE = Annotated[Literal["none", "cpu", "nvme"], About(any_case=True)]

# Keys that are checked more strictly than Accelerate declares them. ``Any`` is for keys that are
# checked by the code that uses them, or that older files hold.
_OWN_TYPES: dict[str, dict[str, Any]] = {
    TOP_LEVEL: {
        "compute_environment": Annotated[Literal["LOCAL_MACHINE"], About(any_case=True)],
        "distributed_type": Any,
        "mixed_precision": Annotated[Literal["no", "bf16", "fp16"], About(any_case=True)],
        "num_machines": _AT_LEAST_ONE,
        "machine_rank": _NOT_NEGATIVE,
        "main_process_port": _NOT_NEGATIVE,
        "fp16": bool,
        "dynamo_backend": Any,
        "downcast_bf16": Any,
        "tpu_name": Any,
        "tpu_zone": Any,
        "tpu_use_cluster": Any,
        "tpu_use_sudo": Any,
        "command_file": Any,
    },
    "deepspeed_config": {
        "deepspeed_moe_layer_cls_names": Any,
        "gradient_accumulation_steps": _AT_LEAST_ONE,
        "gradient_clipping": Annotated[float, About(minimum=0)],
        "offload_optimizer_device": _OFFLOAD_DEVICE,
        "offload_param_device": _OFFLOAD_DEVICE,
        "zero3_init_flag": _FLAG,
        "zero3_save_16bit_model": _FLAG,
        "zero_stage": Any,
    },
    "fsdp_config": {
        "fsdp_ignored_modules": str,  # has no argument: the launcher reads it by its name
        "fsdp_min_num_params": _NOT_NEGATIVE,
        "fsdp_reshard_after_forward": Any,
        "fsdp_sharding_strategy": Any,
        "fsdp_transformer_layer_cls_to_wrap": Any,
        "fsdp_version": Any,
    },
    "parallelism_config": {
        "parallelism_config_cp_size": _AT_LEAST_ONE,
        "parallelism_config_dp_replicate_size": _AT_LEAST_ONE,
        "parallelism_config_dp_shard_size": _AT_LEAST_ONE,
        "parallelism_config_sp_size": _AT_LEAST_ONE,
        "parallelism_config_tp_size": _AT_LEAST_ONE,
    },
}


def sections() -> tuple[str, ...]:
    """Return the names of the nested sections."""
    return tuple(name for name, hint in _cluster_config().items() if _is_mapping(hint))


@functools.cache
def key_types(section: str = TOP_LEVEL) -> dict[str, Any]:
    """Return the annotation of each key of the top level or, in a section, of each argument."""
    if section == TOP_LEVEL:
        declared = {
            name: _scalar_type(hint)
            for name, hint in _cluster_config().items()
            if not _is_mapping(hint)
        }
    else:
        declared = {action.dest: _argument_type(action) for action in _arguments_of(section)}
    return declared | _OWN_TYPES.get(section, {})


def choice(values: typing.Iterable[str]) -> Any:
    """Return the annotation of a text that is one of ``values``, in any case."""
    return Annotated[Literal[tuple(values)], About(any_case=True)]


def sharding_strategies() -> list[str]:
    """Return FSDP1's sharding strategies in Accelerate's order: files may give the number."""
    from accelerate.utils.constants import FSDP_SHARDING_STRATEGY

    return list(FSDP_SHARDING_STRATEGY)


@functools.cache
def _cluster_config() -> dict[str, Any]:
    from accelerate.commands.config.config_args import ClusterConfig

    return typing.get_type_hints(ClusterConfig)


def _is_mapping(hint: Any) -> bool:
    return dict in (typing.get_args(hint) or (hint,))


def _scalar_type(hint: Any) -> Any:
    if typing.get_origin(hint) is list:
        return Any
    for member in typing.get_args(hint) or (hint,):
        if member in (bool, int, float, str):
            return member
    return Any


@functools.cache
def _parser() -> argparse.ArgumentParser:
    from accelerate.commands.launch import launch_command_parser

    parser: argparse.ArgumentParser = launch_command_parser()
    return parser


def _arguments_of(section: str) -> list[argparse.Action]:
    """Return the arguments that a section holds: by the prefix of their names.

    Those for DeepSpeed share no prefix; they are the group of the parser that ``zero_stage`` is in.
    """
    if section == "deepspeed_config":
        for group in argument_groups_of(_parser()):
            if any(action.dest == "zero_stage" for action in group):
                return group
    prefix = f"{section}_" if section == "parallelism_config" else section.removesuffix("config")
    return [action for action in arguments_of(_parser()) if action.dest.startswith(prefix)]


def _argument_type(action: argparse.Action) -> Any:
    choices = action.choices or _choices_without_argparse().get(action.dest)
    if choices:
        return choice(choices)
    is_switch = action.nargs == 0 or str(action.default).lower() in ("true", "false")
    if is_switch or action.type is bool:
        return _FLAG
    if action.type in (int, float, str):
        return action.type
    return Any


@functools.cache
def _choices_without_argparse() -> dict[str, list[str]]:
    """Return the choices that Accelerate keeps beside the parser and not in it."""
    from accelerate.utils import constants

    return {
        "fsdp_auto_wrap_policy": constants.FSDP_AUTO_WRAP_POLICY,
        "fsdp_backward_prefetch": constants.FSDP_BACKWARD_PREFETCH,
        "fsdp_state_dict_type": constants.FSDP2_STATE_DICT_TYPE,
        "deepspeed_multinode_launcher": constants.DEEPSPEED_MULTINODE_LAUNCHERS,
    }
