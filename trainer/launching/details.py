"""Rows of the plan's table that show how a strategy is set up.

Two launch files that ask for different things have different rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Rows = list[tuple[str, str]]


def details(plan: Mapping[str, Any]) -> Rows:
    """Return the rows of the strategy's own settings, and of the compiler.

    Args:
        plan: as in ``plan.json``.
    """
    rows: Rows = []
    if plan["fsdp"]:
        rows = _fsdp(plan["fsdp"])
    elif plan["deepspeed"]:
        rows = _deepspeed(plan["deepspeed"])

    dynamo = dict(plan["dynamo"])
    backend = str(dynamo.pop("backend", "no"))
    rows.append(("compile", ", ".join([backend, *written(dynamo)])))
    return rows


def written(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield ``section.key=value`` for each value, at any depth."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from written(value, f"{prefix}{key}.")
        elif isinstance(value, bool):
            yield f"{prefix}{key}={str(value).lower()}"
        else:
            yield f"{prefix}{key}={value}"


def _fsdp(arguments: Mapping[str, Any]) -> Rows:
    rows: Rows = []
    copies = arguments.get("dp_replicate_size")
    if copies:
        rows.append(("groups", f"{copies}, each with the whole model divided over its processes"))

    reshard = "after the backward pass"
    if arguments["reshard_after_forward"]:
        reshard = "after each forward pass"
    offload = "none"
    if arguments["cpu_offload"]:
        offload = "parameters, gradients and optimizer state to the CPU"
    checkpointing = "no"
    if arguments["activation_checkpointing"]:
        checkpointing = "in each unit"
    if arguments["activation_checkpointing_offload"]:
        checkpointing += ", kept on the CPU"

    rows.append(("wrapping", _wrapping(arguments)))
    rows.append(("reshard", reshard))
    rows.append(("offload", offload))
    rows.append(("activation checkpointing", checkpointing))
    if arguments["ignored_modules"]:
        rows.append(("ignored modules", str(arguments["ignored_modules"])))
    return rows


def _wrapping(arguments: Mapping[str, Any]) -> str:
    """Return which modules are sharded as a unit."""
    policy = arguments["auto_wrap_policy"]
    classes = arguments["transformer_cls_names_to_wrap"]
    if policy == "SIZE_BASED_WRAP":
        return f"modules of {arguments['min_num_params']:,} parameters and more"
    if policy != "TRANSFORMER_BASED_WRAP":
        return "the model as a whole"
    return ", ".join(classes) if classes else "the blocks that the model itself names"


def _deepspeed(config: Mapping[str, Any]) -> Rows:
    zero = dict(config["zero_optimization"])
    zero.pop("stage", None)
    offloads = []
    for key, name in (("offload_optimizer", "optimizer state"), ("offload_param", "parameters")):
        settings = dict(zero.get(key) or {})
        device = settings.pop("device", "none")
        if device == "none":
            zero.pop(key, None)
        else:
            offloads.append(f"{name} to {device}")
            zero[key] = settings

    rows = [("offload", ", ".join(offloads) or "none")]
    others = {key: value for key, value in config.items() if key != "zero_optimization"}
    for name, section in (("ZeRO", zero), ("DeepSpeed", others)):
        texts = list(written(section))
        if texts:
            rows.append((name, ", ".join(texts)))
    return rows
