"""The FSDP section of an accelerate file, as arguments of Accelerate's plugin for FSDP2.

FSDP1 files are mapped. What the two versions share keeps its meaning; what FSDP2 does not have is
named in a notice, or refused with its replacement. Every argument is given explicitly, since the
plugin would read an FSDP_* variable for each that is None.
"""

from __future__ import annotations

import math
from typing import Any

from ...config.validate import Validator
from ...errors import Origin, Sourced
from .accelerate_entries import Entries, of_right_type
from .accelerate_schema import choice, sharding_strategies
from .unused import note_unused

# Arguments of FullyShardedDataParallelPlugin: the key of the file, and the default.
_ARGUMENTS: dict[str, tuple[str, Any]] = {
    "reshard_after_forward": ("fsdp_reshard_after_forward", True),
    "cpu_offload": ("fsdp_offload_params", False),
    "auto_wrap_policy": ("fsdp_auto_wrap_policy", "NO_WRAP"),
    "transformer_cls_names_to_wrap": ("fsdp_transformer_layer_cls_to_wrap", None),
    "min_num_params": ("fsdp_min_num_params", 100_000_000),
    "activation_checkpointing": ("fsdp_activation_checkpointing", False),
    "activation_checkpointing_offload": ("fsdp_activation_checkpointing_offload", False),
    "ignored_modules": ("fsdp_ignored_modules", []),
    "state_dict_type": ("fsdp_state_dict_type", "SHARDED_STATE_DICT"),
}
# Arguments that are the same for every file.
_FIXED = {"fsdp_version": 2, "cpu_ram_efficient_loading": False, "backward_prefetch": "NO_PREFETCH"}

# The policy that reads a key.
_POLICIES = {
    "fsdp_transformer_layer_cls_to_wrap": "TRANSFORMER_BASED_WRAP",
    "fsdp_min_num_params": "SIZE_BASED_WRAP",
}

# Whether FSDP1's strategies free parameters after the forward pass, or why they cannot run.
_HYBRID = (
    "hybrid sharding is parallelism_config under FSDP2: write there "
    "parallelism_config_dp_replicate_size and parallelism_config_dp_shard_size, and here "
    "fsdp_reshard_after_forward: true"
)
_STRATEGIES: dict[str, bool | str] = {
    "FULL_SHARD": True,
    "SHARD_GRAD_OP": False,
    "NO_SHARD": "NO_SHARD is DDP: write distributed_type: MULTI_GPU",
    "HYBRID_SHARD": _HYBRID,
    "HYBRID_SHARD_ZERO2": _HYBRID,
}


def read_fsdp(
    entries: Entries, dimensions: Entries, check: Validator, origin: Origin
) -> tuple[dict[str, Any], dict[str, Origin]]:
    """Return the plugin's arguments with the dimensions, and the origins of those in the file.

    Args:
        entries: the section, by argument of the launcher.
        dimensions: of ``read_dimensions``.
        origin: of the request for FSDP, for what is missing.
    """
    version = _version(entries.get("fsdp_version"), check, origin)
    entries = of_right_type("fsdp_config", _without_local_state(entries, version, check), check)
    values = {}
    origins = {}
    for argument, (key, default) in _ARGUMENTS.items():
        entry = entries.get(key)
        values[argument] = default if entry is None else entry.value
        if entry is not None:
            origins[f"fsdp.{argument}"] = entry.origin

    values["reshard_after_forward"] = _reshard_after_forward(entries, version, check)
    classes = _class_names(entries.get("fsdp_transformer_layer_cls_to_wrap"), check)
    policy = values["auto_wrap_policy"]
    if policy != "TRANSFORMER_BASED_WRAP":
        classes = None
    values["transformer_cls_names_to_wrap"] = classes

    if values["activation_checkpointing_offload"] and not values["activation_checkpointing"]:
        offloaded = entries["fsdp_activation_checkpointing_offload"]
        check.refuse(offloaded, "needs fsdp_activation_checkpointing: true")
    _note_unused(entries, version, policy, check)

    for name, entry in dimensions.items():
        values[name] = entry.value
        origins[f"fsdp.{name}"] = entry.origin
    return {**_FIXED, **values}, origins


def read_dimensions(entries: Entries, world: Sourced[int] | None, check: Validator) -> Entries:
    """Return ``dp_replicate_size``, the groups that hold the whole model each (HSDP), if above 1.

    Args:
        entries: the section parallelism_config, of the right types.
        world: the number of processes, None where the launcher decides it.
    """
    dimensions = {}
    entry = entries.get("parallelism_config_dp_replicate_size")
    if entry is not None and entry.value > 1:
        dimensions["dp_replicate_size"] = entry

    shard_size = entries.get("parallelism_config_dp_shard_size")
    if shard_size is None or world is None:
        return dimensions

    product = shard_size.value * math.prod(entry.value for entry in dimensions.values())
    if product not in (1, world.value):
        factors = "".join(f"times {name} {entry.value} " for name, entry in dimensions.items())
        check.refuse(shard_size, f"{factors}must be the number of processes, {world.value}")
    return dimensions


def _version(found: Sourced[Any] | None, check: Validator, origin: Origin) -> int:
    """Return the version of FSDP that the file was written for: 1 where it gives none."""
    if found is None:
        check.notices.append(
            f"{origin}: no fsdp_version, which accelerate takes as 1: runs as FSDP2; "
            "write fsdp_version: 2"
        )
        return 1

    version = str(found.value)
    if version not in ("1", "2"):
        check.refuse(found, "must be 2, or 1, which runs as FSDP2")
    elif version == "1":
        check.notice(found, "FSDP1 runs as FSDP2; write fsdp_version: 2")
    return 1 if version == "1" else 2


def _without_local_state(entries: Entries, version: int, check: Validator) -> Entries:
    """Return the entries without FSDP1's LOCAL_STATE_DICT, which FSDP2 does not have."""
    found = entries.get("fsdp_state_dict_type")
    if found is None or version != 1 or str(found.value).upper() != "LOCAL_STATE_DICT":
        return entries
    check.notice(found, "FSDP2 does not have it; checkpoints of samecurve do not need it")
    return {name: entry for name, entry in entries.items() if entry is not found}


def _reshard_after_forward(entries: Entries, version: int, check: Validator) -> bool:
    """Return whether parameters are freed after the forward pass.

    FSDP1 files give it as a sharding strategy, those of FSDP2 as true or false.
    """
    old = entries.get("fsdp_sharding_strategy")
    new = entries.get("fsdp_reshard_after_forward")
    text = "" if new is None else str(new.value).lower()
    is_bool = text in ("true", "false")
    if new is not None and version == 2 and not is_bool:
        check.refuse(new, "must be true (FULL_SHARD) or false (SHARD_GRAD_OP) under fsdp_version 2")

    by_old = _by_strategy(old, check)
    by_new = (text == "true") if is_bool else _by_strategy(new, check)
    if old is None or by_old is None:
        return by_new is not False

    if new is not None and by_new not in (None, by_old):
        check.refuse(old, f"disagrees with {text} at {new.origin}; keep fsdp_reshard_after_forward")
    elif version == 2 and new is None and not by_old:
        check.refuse(old, "FSDP2 has no sharding strategy; write fsdp_reshard_after_forward: false")
    return by_old


def _by_strategy(found: Sourced[Any] | None, check: Validator) -> bool | None:
    """Return whether a sharding strategy frees parameters; None where there is none that runs."""
    if found is None:
        return None
    names = sharding_strategies()
    numbered = {str(number): name for number, name in enumerate(names, 1)}
    name = numbered.get(str(found.value)) or check.read(choice(names), found)
    meaning = _STRATEGIES.get(name)
    if isinstance(meaning, str):
        check.refuse(found, meaning)
        return None
    return meaning


def _class_names(found: Sourced[Any] | None, check: Validator) -> list[str] | None:
    """Return the class names of a list, or of a text with commas."""
    if found is None:
        return None
    names = found.value
    if isinstance(names, str):
        names = names.split(",")
    is_list = isinstance(names, list) and bool(names)
    if not is_list or not all(isinstance(name, str) and name.strip() for name in names):
        check.refuse(found, "must be class names, as a list or separated by commas")
        return None
    return [name.strip() for name in names]


def _note_unused(entries: Entries, version: int, policy: str, check: Validator) -> None:
    """Note the keys that FSDP2 does not have, and those that another wrap policy reads."""
    read = {key for key, _ in _ARGUMENTS.values()} | {"fsdp_version"}
    if version == 1:
        read.add("fsdp_sharding_strategy")  # mapped to fsdp_reshard_after_forward
    unread = [entry for key, entry in entries.items() if key not in read]
    note_unused(unread, "no effect under FSDP2", check)

    of_others = []
    for key, reader in _POLICIES.items():
        if key in entries and reader != policy:
            of_others.append(entries[key])
    note_unused(of_others, f"no effect under fsdp_auto_wrap_policy {policy}", check)
