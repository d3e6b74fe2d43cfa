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
BUILT_WHOLE = "no effect: the model is whole in host memory if build_model gives it values, never on the meta device"


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
    typed, entries = entries, checked("fsdp_config", entries, check)
    plugin = {name: (entries.get(key), default) for name, (key, default) in known["fsdp_plugin"].items()}
    values = {name: default if entry is None else entry.value for name, (entry, default) in plugin.items()}
    reshard = _reshard(entries, version, check)
    if dropped := [typed[name] for name in known["fsdp1"] if name in typed]:
        check.notices.append(f"{dropped[0].origin.place}: no effect under FSDP2: {_names(dropped)}")
    if values["cpu_ram_efficient_loading"]:
        check.notice(entries["fsdp_cpu_ram_efficient_loading"], BUILT_WHOLE)
    checkpointing, offload = values["activation_checkpointing"], values["activation_checkpointing_offload"]
    if offload and not checkpointing:
        offloaded = entries["fsdp_activation_checkpointing_offload"]
        check.refuse(offloaded, "needs fsdp_activation_checkpointing: true")
    policy = values["auto_wrap_policy"]
    idle = [entries[name] for name, other in known["fsdp_policies"].items() if name in entries and other != policy]
    if idle := [entry for entry in idle if entry.value not in (0, "", [])]:
        check.notices.append(f"{idle[0].origin.place}: no effect under fsdp_auto_wrap_policy {policy}: {_names(idle)}")
    if values["state_dict_type"] == "FULL_STATE_DICT":
        whole = "no effect: in checkpoints each rank writes its part; the model is exported whole"
        check.notice(entries["fsdp_state_dict_type"], whole)
    classes = _classes(entries.get("fsdp_transformer_layer_cls_to_wrap"), check)
    values |= {
        "fsdp_version": 2,
        "reshard_after_forward": reshard,
        "transformer_cls_names_to_wrap": classes if policy == "TRANSFORMER_BASED_WRAP" else None,
        "activation_checkpointing_offload": offload and checkpointing,
        "ignored_modules": values["ignored_modules"] or [],
        "cpu_ram_efficient_loading": False,
        "backward_prefetch": "NO_PREFETCH",
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


def _names(entries: list[Sourced[Any]]) -> str:
    return ", ".join(entry.origin.key.rsplit(".", 1)[-1] for entry in entries)


def _version(found: Sourced[Any] | None, check: Validator, origin: Origin) -> int:
    if found is None:
        rule = "no fsdp_version, which accelerate takes as 1: runs as FSDP2; write fsdp_version: 2"
        check.notices.append(f"{origin}: {rule}")
        return 1
    if str(found.value) not in ("1", "2") or isinstance(found.value, float):
        check.refuse(found, "must be 2, or 1, which runs as FSDP2")
    elif str(found.value) == "1":
        check.notice(found, "FSDP1 runs as FSDP2; write fsdp_version: 2")
        return 1
    return 2


def _reshard(entries: Entries, version: int, check: Validator) -> bool:
    old, new = entries.get("fsdp_sharding_strategy"), entries.get("fsdp_reshard_after_forward")
    by_old = None if old is None else _by_strategy(old, check)
    by_new: bool | None = None
    if new is not None:
        if str(new.value).lower() in ("true", "false"):
            by_new = str(new.value).lower() == "true"
        elif version == 2:
            check.refuse(new, "must be true (FULL_SHARD) or false (SHARD_GRAD_OP) under fsdp_version 2")
        else:
            by_new = _by_strategy(new, check)
    if old is not None and by_old is not None:
        if new is not None and by_new is not None and by_new != by_old:
            rule = f"disagrees with {str(new.value).lower()} at {new.origin}; keep fsdp_reshard_after_forward"
            check.refuse(old, rule)
        elif version == 2 and by_old != (by_new is not False):
            check.refuse(old, "FSDP2 has no sharding strategy; write fsdp_reshard_after_forward: false")
        elif version == 2:
            check.notice(old, "no effect under FSDP2: fsdp_reshard_after_forward says it")
    values = [value for value in (by_new, by_old) if value is not None]
    return values[0] if values else True


def _by_strategy(found: Sourced[Any], check: Validator) -> bool | None:
    known, number = table("accelerate")["sections"]["fsdp_config"]["fsdp_sharding_strategy"], str(found.value)
    if number.isdigit() and 1 <= int(number) <= len(known):  # Accelerate numbers them from 1 (utils/constants.py)
        name = known[int(number) - 1]
    else:
        name = check.read(annotation(known, any_case=True), found)
    if name is None or name in _RESHARDS:
        return None if name is None else _RESHARDS[name]
    if name == "NO_SHARD":
        check.refuse(found, "NO_SHARD is DDP: write distributed_type: MULTI_GPU")
    else:
        rule = "hybrid sharding is parallelism_config under FSDP2: write there parallelism_config_dp_replicate_size and"
        check.refuse(found, f"{rule} parallelism_config_dp_shard_size, and here fsdp_reshard_after_forward: true")
    return None


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
    if "distributed_type" in doc.data or "zero_optimization" in doc.data:
        return
    section = doc.data.get("fsdp_config")
    data = {**doc.data, **(section if isinstance(section, dict) else {})}
    keys = {str(key).removeprefix("fsdp_"): value for key, value in data.items()}
    typical = keys.keys() & set(table("accelerate")["transformers"]) or any(
        str(key).startswith("fsdp_") for key in doc.data.keys() - {"fsdp_config"}
    )
    if "compute_environment" in doc.data or not ("fsdp" in doc.data or typical):
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
    raise ConfigError(Problem(origin=Origin(doc.path), rule=rule))
