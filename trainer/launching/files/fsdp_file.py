"""The FSDP section of an accelerate file, as arguments of Accelerate's plugin for FSDP2.

FSDP1 files are mapped: what the two share keeps its meaning, what FSDP2 does not have is named in a
notice or refused with its replacement. Every argument is given explicitly, since the plugin would read
FSDP_* variables for each that is None.
"""

from __future__ import annotations

import math
from typing import Any

import yaml

from ...config.documents import Document
from ...config.validate import Validator
from ...errors import ConfigError, Origin, Problem, Sourced
from .tables import Entries, annotation, checked, table

_RESHARDS = {"FULL_SHARD": True, "SHARD_GRAD_OP": False}
_CLASSES = "fsdp_transformer_layer_cls_to_wrap"


def read_fsdp(entries: Entries, check: Validator, origin: Origin) -> tuple[dict[str, Any], dict[str, Origin]]:
    """Return the plugin's arguments, and the origins of those that were typed.

    Args:
        entries: the section by launcher argument name.
        origin: of the wish for FSDP, for what is missing.
    """
    known = table("accelerate")
    version = _version(entries.get("fsdp_version"), check, origin)
    state_dict = entries.get("fsdp_state_dict_type")
    if state_dict is not None and version == 1 and str(state_dict.value).upper() == "LOCAL_STATE_DICT":
        check.notice(state_dict, "FSDP2 does not have it; checkpoints of samecurve do not need it")
        entries = {name: entry for name, entry in entries.items() if entry is not state_dict}
    dropped = [entries[name] for name in known["fsdp1"] if name in entries]
    entries = checked("fsdp_config", entries, check)
    plugin = {name: (entries.get(key), default) for name, (key, default) in known["fsdp_plugin"].items()}
    values = {name: default if entry is None else entry.value for name, (entry, default) in plugin.items()}
    reshard = _reshard(entries, version, check)
    check.idle(dropped, "no effect under FSDP2")
    if values["activation_checkpointing_offload"] and not values["activation_checkpointing"]:
        offloaded = entries["fsdp_activation_checkpointing_offload"]
        check.refuse(offloaded, "needs fsdp_activation_checkpointing: true")
    policy = values["auto_wrap_policy"]
    others = [entries[name] for name, other in known["fsdp_policies"].items() if name in entries and other != policy]
    check.idle([entry for entry in others if entry.value], f"no effect under fsdp_auto_wrap_policy {policy}")
    for name, (value, reason) in known["fsdp_idle"].items():
        if name in entries and entries[name].value == value:
            check.notice(entries[name], reason)
    classes = _classes(entries.get(_CLASSES), check)
    values |= {
        "reshard_after_forward": reshard,
        "transformer_cls_names_to_wrap": classes if policy == "TRANSFORMER_BASED_WRAP" else None,
        "ignored_modules": values["ignored_modules"] or [],
    }
    return values, {f"fsdp.{name}": entry.origin for name, (entry, _) in plugin.items() if entry}


def read_dimensions(
    entries: Entries, world: Sourced[int] | None, check: Validator
) -> tuple[dict[str, int], dict[str, Origin]]:
    """Return how many groups of processes hold the whole model each (HSDP), and how many divide each layer (tensor
    parallelism), with their origins; what is 1 is left out.

    Args:
        entries: the section parallelism_config, of the right types.
    """
    found = {name: entries.get(f"parallelism_config_{name}") for name in ("dp_replicate_size", "tp_size")}
    more = {name: entry for name, entry in found.items() if entry is not None and entry.value > 1}
    ranks = entries.get("parallelism_config_dp_shard_size")
    product = math.prod(entry.value for entry in more.values())
    if ranks is not None and world is not None and product * ranks.value not in (1, world.value):
        others = "".join(f"times {name} {entry.value} " for name, entry in more.items())
        check.refuse(ranks, f"{others}must be the number of processes, {world.value}")
    return {name: entry.value for name, entry in more.items()}, {f"fsdp.{name}": e.origin for name, e in more.items()}


def _version(found: Sourced[Any] | None, check: Validator, origin: Origin) -> int:
    if found is None:
        rule = "no fsdp_version, which accelerate takes as 1: runs as FSDP2; write fsdp_version: 2"
        check.notices.append(f"{origin}: {rule}")
        return 1
    if str(found.value) == "1":
        check.notice(found, "FSDP1 runs as FSDP2; write fsdp_version: 2")
        return 1
    if str(found.value) != "2":
        check.refuse(found, "must be 2, or 1, which runs as FSDP2")
    return 2


def _reshard(entries: Entries, version: int, check: Validator) -> bool:
    old, new = entries.get("fsdp_sharding_strategy"), entries.get("fsdp_reshard_after_forward")
    by_old = None if old is None else _by_strategy(old, check)
    by_new: bool | None = None
    if new is not None and str(new.value).lower() in ("true", "false"):
        by_new = str(new.value).lower() == "true"
    elif new is not None and version == 2:
        check.refuse(new, "must be true (FULL_SHARD) or false (SHARD_GRAD_OP) under fsdp_version 2")
    elif new is not None:
        by_new = _by_strategy(new, check)
    if old is None or by_old is None:
        return by_new is not False
    if new is not None and by_new is not None and by_new != by_old:
        rule = f"disagrees with {str(new.value).lower()} at {new.origin}; keep fsdp_reshard_after_forward"
        check.refuse(old, rule)
    elif version == 2 and by_old != (by_new is not False):
        check.refuse(old, "FSDP2 has no sharding strategy; write fsdp_reshard_after_forward: false")
    elif version == 2:
        check.notice(old, "no effect under FSDP2: fsdp_reshard_after_forward says it")
    return by_old


def _by_strategy(found: Sourced[Any], check: Validator) -> bool | None:
    known = table("accelerate")["sections"]["fsdp_config"]["fsdp_sharding_strategy"]
    numbered = {str(number): name for number, name in enumerate(known, 1)}  # as Accelerate does (utils/constants.py)
    name = numbered.get(str(found.value)) or check.read(annotation(known, any_case=True), found)
    if name == "NO_SHARD":
        check.refuse(found, "NO_SHARD is DDP: write distributed_type: MULTI_GPU")
    elif name is not None and name not in _RESHARDS:
        rule = "hybrid sharding is parallelism_config under FSDP2: write there parallelism_config_dp_replicate_size and"
        check.refuse(found, f"{rule} parallelism_config_dp_shard_size, and here fsdp_reshard_after_forward: true")
    return _RESHARDS.get(name)


def _classes(found: Sourced[Any] | None, check: Validator) -> list[str] | None:
    if found is None:
        return None
    names = found.value.split(",") if isinstance(found.value, str) else found.value
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name.strip() for name in names):
        check.refuse(found, "must be class names, as a list or separated by commas")
        return None
    return [name.strip() for name in names]


def refuse_transformers_fsdp(doc: Document) -> None:
    """Raise ConfigError for a file that transformers' own Trainer takes (``--fsdp_config``), with the YAML to write."""
    known, section = table("accelerate"), doc.data.get("fsdp_config")
    data = {**doc.data, **(section if isinstance(section, dict) else {})}
    keys = {f"fsdp_{str(key).removeprefix('fsdp_')}": value for key, value in data.items()}
    typical = keys.keys() & {f"fsdp_{key}" for key in ("fsdp", *known["transformers"])}
    prefixed = any(str(key).startswith("fsdp_") for key in doc.data.keys() - {"fsdp_config"})
    if doc.data.keys() & {"distributed_type", "zero_optimization", "compute_environment"} or not (typical or prefixed):
        return
    # Its keys are Accelerate's without the prefix; what is off by default is left out.
    names = keys.get(_CLASSES)
    keys[_CLASSES] = ",".join(names) if isinstance(names, list) else names
    taken = [key for key in known["sections"]["fsdp_config"] if key not in known["fsdp1"]]
    settings = {key: keys[key] for key in taken if keys.get(key)} | {"fsdp_version": 2}
    for key, policy in known["fsdp_policies"].items():
        if key in settings:
            settings.setdefault("fsdp_auto_wrap_policy", policy)
    if keys.get("fsdp_reshard_after_forward") is False:
        settings["fsdp_reshard_after_forward"] = False
    for word, meant in known["transformers_words"].items():
        if word in str(keys.get("fsdp_fsdp", "")).split():
            settings |= meant
    written = {"distributed_type": "FSDP", "fsdp_config": settings}
    flow = yaml.safe_dump(written, default_flow_style=True, width=10**6).strip()
    rule = f"this is a file for transformers' own Trainer; write an accelerate YAML instead: {flow}"
    raise ConfigError(Problem(origin=Origin(doc.path), rule=rule))
