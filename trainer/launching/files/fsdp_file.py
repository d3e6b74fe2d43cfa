"""The FSDP section of an accelerate file, as arguments of Accelerate's plugin for FSDP2.

FSDP1 files are mapped: what the two share keeps its meaning, what FSDP2 does not have is named in a
notice or refused with its replacement. Every argument is given explicitly, since the plugin would read
FSDP_* variables for each that is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from ...config.documents import Document
from ...errors import ConfigError, Problem
from .check import Check, Given

# Keys of transformers' fsdp_config that no other file has, without their prefix.
_OF_TRANSFORMERS = {
    "transformer_layer_cls_to_wrap",
    "backward_prefetch",
    "forward_prefetch",
    "limit_all_gathers",
    "use_orig_params",
    "sync_module_states",
    "cpu_ram_efficient_loading",
    "xla",
    "xla_fsdp_v2",
    "xla_fsdp_settings",
    "xla_fsdp_grad_ckpt",
}
# Accelerate's own numbering of sharding strategies (utils/constants.py) starts at 1.
_RESHARDS = {"FULL_SHARD": True, "SHARD_GRAD_OP": False}
# The policy that reads a key.
_OF_POLICY = {
    "fsdp_transformer_layer_cls_to_wrap": "TRANSFORMER_BASED_WRAP",
    "fsdp_min_num_params": "SIZE_BASED_WRAP",
}
_NOT_IN_FSDP2 = (
    "fsdp_use_orig_params",
    "fsdp_sync_module_states",
    "fsdp_backward_prefetch",
    "fsdp_forward_prefetch",
)


def read_fsdp(entries: Mapping[str, Given], check: Check, home: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The plugin's arguments, and the homes of those that were typed.

    Args:
        entries: the section by launcher argument name.
        home: where FSDP was asked for, for what is missing.
    """
    from accelerate.utils.constants import FSDP2_STATE_DICT_TYPE, FSDP_AUTO_WRAP_POLICY, FSDP_BACKWARD_PREFETCH

    version = _version(entries.get("fsdp_version"), check, home)
    reshard = _reshard(entries, version, check)
    for name in ("fsdp_use_orig_params", "fsdp_sync_module_states", "fsdp_forward_prefetch"):
        check.switch(entries.get(name))
    check.choice(entries.get("fsdp_backward_prefetch"), FSDP_BACKWARD_PREFETCH)
    dropped = [entries[name] for name in _NOT_IN_FSDP2 if name in entries]
    if dropped:
        names = ", ".join(given.key.rsplit(".", 1)[-1] for given in dropped)
        check.notices.append(f"{dropped[0].where}: no effect under FSDP2: {names}")
    loading = entries.get("fsdp_cpu_ram_efficient_loading")
    if check.switch(loading) and loading is not None:
        check.notice(loading, "no effect: each rank builds the whole model in host memory, then keeps its shard")

    checkpointing = bool(check.switch(entries.get("fsdp_activation_checkpointing")))
    offload = entries.get("fsdp_activation_checkpointing_offload")
    if check.switch(offload) and offload is not None and not checkpointing:
        check.fail(offload, "needs fsdp_activation_checkpointing: true")
    policy = check.choice(entries.get("fsdp_auto_wrap_policy"), FSDP_AUTO_WRAP_POLICY) or "NO_WRAP"
    idle = [entries[name] for name, other in _OF_POLICY.items() if name in entries and other != policy]
    if idle := [given for given in idle if given.value not in (0, "", [])]:
        names = ", ".join(given.key.rsplit(".", 1)[-1] for given in idle)
        check.notices.append(f"{idle[0].where}: no effect under fsdp_auto_wrap_policy {policy}: {names}")
    classes = _classes(entries.get("fsdp_transformer_layer_cls_to_wrap"), check)
    values = {
        "fsdp_version": 2,
        "reshard_after_forward": reshard,
        "cpu_offload": bool(check.switch(entries.get("fsdp_offload_params"))),
        "auto_wrap_policy": policy,
        "transformer_cls_names_to_wrap": classes if policy == "TRANSFORMER_BASED_WRAP" else None,
        "min_num_params": _min_num_params(entries.get("fsdp_min_num_params"), check),
        "activation_checkpointing": checkpointing,
        "activation_checkpointing_offload": bool(offload and offload.value) and checkpointing,
        # An empty list, not None: the plugin would ask the environment.
        "ignored_modules": check.text(entries.get("fsdp_ignored_modules")) or [],
        "cpu_ram_efficient_loading": False,
        "state_dict_type": _state_dict_type(entries, version, FSDP2_STATE_DICT_TYPE, check),
        "backward_prefetch": "NO_PREFETCH",
    }
    typed = {
        "cpu_offload": "fsdp_offload_params",
        "transformer_cls_names_to_wrap": "fsdp_transformer_layer_cls_to_wrap",
    }
    homes = {name: entries[arg].home for name in values if (arg := typed.get(name, f"fsdp_{name}")) in entries}
    return values, {f"fsdp.{name}": place for name, place in homes.items()}


def _version(given: Given | None, check: Check, home: str) -> int:
    if given is None:
        check.notices.append(
            f"{home}: no fsdp_version, which accelerate takes as 1: runs as FSDP2; write fsdp_version: 2"
        )
        return 1
    if str(given.value) not in ("1", "2") or isinstance(given.value, float):
        check.fail(given, "must be 2, or 1, which runs as FSDP2")
    elif str(given.value) == "1":
        check.notice(given, "FSDP1 runs as FSDP2; write fsdp_version: 2")
        return 1
    return 2


def _reshard(entries: Mapping[str, Given], version: int, check: Check) -> bool:
    old, new = entries.get("fsdp_sharding_strategy"), entries.get("fsdp_reshard_after_forward")
    by_old = None if old is None else _by_strategy(old, check)
    by_new: bool | None = None
    if new is not None:
        if isinstance(new.value, bool) or str(new.value).lower() in ("true", "false"):
            by_new = check.switch(new)
        elif version == 2:
            check.fail(new, "must be true (FULL_SHARD) or false (SHARD_GRAD_OP) under fsdp_version 2")
        else:
            by_new = _by_strategy(new, check)
    if old is not None and by_old is not None:
        if new is not None and by_new is not None and by_new != by_old:
            check.fail(old, f"disagrees with {str(new.value).lower()} at {new.home}; keep fsdp_reshard_after_forward")
        elif version == 2 and by_old != (by_new is not False):
            check.fail(old, "FSDP2 has no sharding strategy; write fsdp_reshard_after_forward: false")
        elif version == 2:
            check.notice(old, "no effect under FSDP2: fsdp_reshard_after_forward says it")
    values = [value for value in (by_new, by_old) if value is not None]
    return values[0] if values else True


def _by_strategy(given: Given, check: Check) -> bool | None:
    from accelerate.utils.constants import FSDP_SHARDING_STRATEGY

    number = str(given.value)
    if number.isdigit() and 1 <= int(number) <= len(FSDP_SHARDING_STRATEGY):
        name: str | None = FSDP_SHARDING_STRATEGY[int(number) - 1]
    else:
        name = check.choice(given, FSDP_SHARDING_STRATEGY)
    if name is None or name in _RESHARDS:
        return None if name is None else _RESHARDS[name]
    if name == "NO_SHARD":
        check.fail(given, "NO_SHARD is DDP: write distributed_type: MULTI_GPU")
    else:
        check.fail(
            given,
            "hybrid sharding is parallelism_config (dp_replicate_size, dp_shard_size) under FSDP2, "
            "which samecurve does not support yet; write fsdp_reshard_after_forward: true",
        )
    return None


def _classes(given: Given | None, check: Check) -> list[str] | None:
    if given is None:
        return None
    names = given.value.split(",") if isinstance(given.value, str) else given.value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        check.fail(given, "must be class names, as a list or separated by commas")
        return None
    return [name.strip() for name in names]


def _min_num_params(given: Given | None, check: Check) -> int:
    from .accelerate_keys import parser

    typed = check.whole(given, at_least=0)
    return int(parser().get_default("fsdp_min_num_params")) if typed is None else typed


def _state_dict_type(entries: Mapping[str, Given], version: int, known: list[str], check: Check) -> str:
    given = entries.get("fsdp_state_dict_type")
    if given is not None and version == 1 and str(given.value).upper() == "LOCAL_STATE_DICT":
        check.notice(given, "FSDP2 does not have it; checkpoints of samecurve do not need it")
        return "SHARDED_STATE_DICT"
    name = check.choice(given, known) or "SHARDED_STATE_DICT"
    if given is not None and name == "FULL_STATE_DICT":
        check.notice(given, "no effect: in checkpoints each rank writes its part; the model is exported whole")
    return name


def refuse_transformers_fsdp(doc: Document) -> None:
    """Raise ConfigError for a file that transformers' own Trainer takes (``--fsdp_config``), with the YAML to write."""
    if "distributed_type" in doc.data or "zero_optimization" in doc.data:
        return
    section = doc.data.get("fsdp_config")
    data = {**doc.data, **(section if isinstance(section, dict) else {})}
    keys = {str(key).removeprefix("fsdp_"): value for key, value in data.items()}
    told = _OF_TRANSFORMERS & keys.keys() or any(
        str(key).startswith("fsdp_") for key in doc.data.keys() - {"fsdp_config"}
    )
    if "compute_environment" in doc.data or not ("fsdp" in doc.data or told):
        return
    words = str(keys.get("fsdp", "")).split()
    classes, size = keys.get("transformer_layer_cls_to_wrap"), keys.get("min_num_params")
    settings: dict[str, Any] = {"fsdp_version": 2}
    if classes:
        names = ",".join(classes) if isinstance(classes, list) else classes
        settings |= {"fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP", "fsdp_transformer_layer_cls_to_wrap": names}
    elif size:
        settings |= {"fsdp_auto_wrap_policy": "SIZE_BASED_WRAP", "fsdp_min_num_params": size}
    if "shard_grad_op" in words or keys.get("reshard_after_forward") is False:
        settings["fsdp_reshard_after_forward"] = False
    if "offload" in words or keys.get("offload_params") is True:
        settings["fsdp_offload_params"] = True
    if keys.get("activation_checkpointing") is True:
        settings["fsdp_activation_checkpointing"] = True
    flow = yaml.safe_dump({"distributed_type": "FSDP", "fsdp_config": settings}, default_flow_style=True, width=10**6)
    rule = f"this is a file for transformers' own Trainer; write an accelerate YAML instead: {flow.strip()}"
    raise ConfigError(Problem(where=doc.path, key="", rule=rule))
