"""Rows of a table that say how a strategy is set up: files that ask for different things look
different.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Rows = list[tuple[str, str]]


def details(plan: Mapping[str, Any]) -> Rows:
    """Return the rows of what only one strategy has, and of the compiler. ``plan``: as in
    ``plan.json``.
    """
    rows = (
        _fsdp(plan["fsdp"])
        if plan["fsdp"]
        else _deepspeed(plan["deepspeed"])
        if plan["deepspeed"]
        else []
    )
    dynamo = dict(plan["dynamo"])
    backend = str(dynamo.pop("backend", "no"))
    return [*rows, ("compile", ", ".join([backend, *written(dynamo)]))]


def _fsdp(arguments: Mapping[str, Any]) -> Rows:
    policy, classes = arguments["auto_wrap_policy"], arguments["transformer_cls_names_to_wrap"]
    units = {
        "TRANSFORMER_BASED_WRAP": ", ".join(classes)
        if classes
        else "the blocks that the model itself names",
        "SIZE_BASED_WRAP": f"modules of {arguments['min_num_params']:,} parameters and more",
    }
    checkpointing = "in each unit" if arguments["activation_checkpointing"] else "no"
    if arguments["activation_checkpointing_offload"]:
        checkpointing += ", kept on the CPU"
    rows = [
        ("wrapping", units.get(policy, "the model as a whole")),
        (
            "reshard",
            "after each forward pass"
            if arguments["reshard_after_forward"]
            else "after the backward pass",
        ),
        (
            "offload",
            "parameters, gradients and optimizer state to the CPU"
            if arguments["cpu_offload"]
            else "none",
        ),
        ("activation checkpointing", checkpointing),
    ]
    if copies := arguments.get("dp_replicate_size"):
        rows.insert(
            0, ("groups", f"{copies}, each with the whole model divided over its processes")
        )
    if (size := arguments.get("tp_size", 1)) > 1:
        rows.insert(
            0,
            (
                "tensor parallel",
                f"each layer over {size} processes in a row, by transformers' plan",
            ),
        )
    ignored = arguments["ignored_modules"]
    return [*rows, ("ignored modules", str(ignored))] if ignored else rows


def _deepspeed(config: Mapping[str, Any]) -> Rows:
    zero = {key: value for key, value in config["zero_optimization"].items() if key != "stage"}
    moved = []
    for key, name in (("offload_optimizer", "optimizer state"), ("offload_param", "parameters")):
        part = dict(zero.get(key) or {})
        if (device := part.pop("device", "none")) != "none":
            moved.append(f"{name} to {device}")
            zero[key] = part
        else:
            zero.pop(key, None)
    rows = [("offload", ", ".join(moved) or "none")]
    others = {key: value for key, value in config.items() if key != "zero_optimization"}
    for name, settings in (("ZeRO", zero), ("DeepSpeed", others)):
        if texts := list(written(settings)):
            rows.append((name, ", ".join(texts)))
    return rows


def written(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield ``section.key=value`` for each value, at any depth."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from written(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={str(value).lower() if isinstance(value, bool) else value}"
