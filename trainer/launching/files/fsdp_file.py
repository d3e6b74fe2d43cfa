"""The FSDP section of an accelerate file, as arguments of Accelerate's plugin for FSDP2.

FSDP1 files are mapped: what the two share keeps its meaning, what FSDP2 does not have is named in a
notice or refused with its replacement. Every argument is given explicitly, since the plugin would
read FSDP_* variables for each that is None.
"""

from __future__ import annotations

import math
from typing import Any

from ...config.documents import Document
from ...config.validate import Validator
from ...errors import ConfigError, Origin, Problem, Sourced
from .tables import Entries, accelerate_keys, annotation, checked, deepspeed_keys, table

_CLASSES = "fsdp_transformer_layer_cls_to_wrap"
_OTHERS = {
    "distributed_type": "an accelerate config: give it to accelerate launch, or with --accel_config",
    "zero_optimization": "a DeepSpeed config: give it with --deepspeed",
}


def read_fsdp(
    entries: Entries, dimensions: Entries, check: Validator, origin: Origin
) -> tuple[dict[str, Any], dict[str, Origin]]:
    """Return the plugin's arguments with the dimensions, and the origins of those that were typed.

    Args:
        entries: the section by launcher argument name.
        dimensions: of ``read_dimensions``.
        origin: of the wish for FSDP, for what is missing.
    """
    known = table("accelerate")
    version = _version(entries.get("fsdp_version"), check, origin)
    state_dict = entries.get("fsdp_state_dict_type")
    if (
        state_dict is not None
        and version == 1
        and str(state_dict.value).upper() == "LOCAL_STATE_DICT"
    ):
        check.notice(state_dict, "FSDP2 does not have it; checkpoints of samecurve do not need it")
        entries = {name: entry for name, entry in entries.items() if entry is not state_dict}
    dropped = [entries[name] for name in known["fsdp1"] if name in entries]
    entries = checked("fsdp_config", entries, check)
    plugin = {
        name: (entries.get(key), default) for name, (key, default) in known["fsdp_plugin"].items()
    }
    values = {
        name: default if entry is None else entry.value for name, (entry, default) in plugin.items()
    }
    reshard = _reshard(entries, version, check)
    check.idle(dropped, "no effect under FSDP2")
    if values["activation_checkpointing_offload"] and not values["activation_checkpointing"]:
        offloaded = entries["fsdp_activation_checkpointing_offload"]
        check.refuse(offloaded, "needs fsdp_activation_checkpointing: true")
    policy = values["auto_wrap_policy"]
    others = [
        entries[name]
        for name, other in known["fsdp_policies"].items()
        if name in entries and other != policy
    ]
    check.idle(
        [entry for entry in others if entry.value],
        f"no effect under fsdp_auto_wrap_policy {policy}",
    )
    classes = _classes(entries.get(_CLASSES), check)
    typed = {name: entry for name, (entry, _) in plugin.items() if entry} | dict(dimensions)
    values |= {name: entry.value for name, entry in dimensions.items()} | {
        "reshard_after_forward": reshard,
        "transformer_cls_names_to_wrap": classes if policy == "TRANSFORMER_BASED_WRAP" else None,
        "ignored_modules": values["ignored_modules"] or [],
    }
    return values, {f"fsdp.{name}": entry.origin for name, entry in typed.items()}


def read_dimensions(entries: Entries, world: Sourced[int] | None, check: Validator) -> Entries:
    """Return how many groups of processes hold the whole model each (HSDP), and how many divide
    each layer (tensor parallelism); what is 1 is left out.

    Args:
        entries: the section parallelism_config, of the right types.
    """
    found = {
        name: entries.get(f"parallelism_config_{name}") for name in ("dp_replicate_size", "tp_size")
    }
    more = {name: entry for name, entry in found.items() if entry is not None and entry.value > 1}
    ranks = entries.get("parallelism_config_dp_shard_size")
    product = math.prod(entry.value for entry in more.values())
    if ranks is not None and world is not None and product * ranks.value not in (1, world.value):
        others = "".join(f"times {name} {entry.value} " for name, entry in more.items())
        check.refuse(ranks, f"{others}must be the number of processes, {world.value}")
    return more


def _version(found: Sourced[Any] | None, check: Validator, origin: Origin) -> int:
    version = "1" if found is None else str(found.value)
    if found is not None and version not in ("1", "2"):
        check.refuse(found, "must be 2, or 1, which runs as FSDP2")
    elif version == "1":
        missing = f"{origin}: no fsdp_version, which accelerate takes as 1:"
        said = missing if found is None else f"{found.origin.place}: {found.origin.key}: FSDP1"
        check.notices.append(f"{said} runs as FSDP2; write fsdp_version: 2")
    return 1 if version == "1" else 2


def _reshard(entries: Entries, version: int, check: Validator) -> bool:
    old, new = entries.get("fsdp_sharding_strategy"), entries.get("fsdp_reshard_after_forward")
    said = "" if new is None else str(new.value).lower()
    if new is not None and version == 2 and said not in ("true", "false"):
        check.refuse(new, "must be true (FULL_SHARD) or false (SHARD_GRAD_OP) under fsdp_version 2")
    by_old = _by_strategy(old, check)
    by_new = said == "true" if said in ("true", "false") else _by_strategy(new, check)
    if old is None or by_old is None:
        return by_new is not False
    if new is not None and by_new not in (None, by_old):
        check.refuse(old, f"disagrees with {said} at {new.origin}; keep fsdp_reshard_after_forward")
    elif version == 2 and new is None and not by_old:
        check.refuse(old, "FSDP2 has no sharding strategy; write fsdp_reshard_after_forward: false")
    elif version == 2:
        check.notice(old, "no effect under FSDP2: fsdp_reshard_after_forward says it")
    return by_old


def _by_strategy(found: Sourced[Any] | None, check: Validator) -> bool | None:
    """Return whether parameters are let go after the forward pass; None where nothing that can run
    is said.
    """
    known = table("accelerate")["fsdp_strategies"]
    numbered = {
        str(number): name for number, name in enumerate(known, 1)
    }  # as Accelerate does (utils/constants.py)
    name = found and (
        numbered.get(str(found.value)) or check.read(annotation(list(known), any_case=True), found)
    )
    meant = known.get(name)
    if found is not None and isinstance(meant, str):
        check.refuse(found, meant)
    return meant if isinstance(meant, bool) else None


def _classes(found: Sourced[Any] | None, check: Validator) -> list[str] | None:
    if found is None:
        return None
    names = found.value.split(",") if isinstance(found.value, str) else found.value
    if (
        not isinstance(names, list)
        or not names
        or not all(isinstance(name, str) and name.strip() for name in names)
    ):
        check.refuse(found, "must be class names, as a list or separated by commas")
        return None
    return [name.strip() for name in names]


def refuse_other_files(doc: Document, own: str = "") -> None:
    """Raise ConfigError for a file that another option takes, or transformers' own Trainer
    (``--fsdp_config``).

    Args:
        own: a key that the other launch file does not have; "" where either will do.
    """
    section, known = doc.data.get("fsdp_config"), table("accelerate")
    keys = {
        str(key).removeprefix("fsdp_")
        for key in {**doc.data, **(section if isinstance(section, dict) else {})}
    }
    prefixed = any(str(key).startswith("fsdp_") for key in doc.data.keys() - {"fsdp_config"})
    typical = keys & {"fsdp", *known["transformers"]}
    named = next((key for key in _OTHERS if key in doc.data), None)
    other = named or _by_all_keys(doc)
    if (typical or prefixed) and not named and "compute_environment" not in doc.data:
        rule = f"a file for transformers' own Trainer; {known['transformers_fsdp']}"
    elif own and own not in doc.data and other not in (None, own):
        rule = _OTHERS[other]
    else:
        return
    raise ConfigError(Problem(origin=Origin(doc.path), rule=f"this is {rule}"))


def _by_all_keys(doc: Document) -> str | None:
    """Return the key of ``_OTHERS`` that is left out; None where it has keys of both or of neither."""
    deepspeed = deepspeed_keys() or {}
    accelerate = {*accelerate_keys(), *table("accelerate")["sections"]} - deepspeed.keys()
    found = {
        "distributed_type": doc.data.keys() & accelerate,
        "zero_optimization": doc.data.keys() & deepspeed.keys(),
    }
    names = [name for name, keys in found.items() if keys]
    return names[0] if len(names) == 1 else None
