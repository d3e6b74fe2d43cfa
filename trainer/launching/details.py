"""Rows of a table that say how a strategy is set up: files that ask for different things look different."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from .cpu_rehearsal import rehearsal_changes, rehearsal_precision
from .request import Request, Section

Rows = list[tuple[str, str]]


def details(plan: Mapping[str, Any]) -> Rows:
    """Return the rows of what only one strategy has, and of the compiler. ``plan``: as in ``plan.json``."""
    rows = _fsdp(plan["fsdp"]) if plan["fsdp"] else _deepspeed(plan["deepspeed"]) if plan["deepspeed"] else []
    dynamo = dict(plan["dynamo"])
    backend = str(dynamo.pop("backend", "no"))
    return [*rows, ("compile", ", ".join([backend, *_written(dynamo)]))]


def request_rows(request: Request, world_size: int | None, *, rehearsal: bool) -> Rows:
    """Return the rows of a launch file alone; what it leaves to the training config is left out."""
    asked = {
        "micro": request.micro_batch_size,
        "accumulation": request.accumulation_steps,
        "global": request.global_batch_size,
    }
    precision, norm = request.mixed_precision, request.max_grad_norm
    fsdp, deepspeed = rehearsal_changes(request) if rehearsal else (request.fsdp, request.deepspeed)
    rows = [
        ("strategy", "single" if request.strategy == "ddp" and world_size == 1 else request.strategy),
        ("world size", "the number of processes comes from the launcher" if world_size is None else str(world_size)),
    ]
    if precision is not None:
        rows.append(
            ("precision", rehearsal_precision(request.strategy, precision.value) if rehearsal else precision.value)
        )
    if batch := ", ".join(f"{name} {value.value}" for name, value in asked.items() if value is not None):
        rows.append(("batch", batch))
    for name, section in (("optimizer", request.optimizer), ("schedule", request.scheduler)):
        if section is not None:
            rows.append((name, _section(section)))
    if norm is not None:
        rows.append(("clipping", f"global norm {norm.value:g}" if norm.value else "none"))
    return [*rows, *details({"fsdp": fsdp, "deepspeed": deepspeed, "dynamo": request.dynamo})]


def _section(section: Section) -> str:
    values = {key: found.value for key, found in section.values.items()}
    defaults = {key: found.value for key, found in section.defaults.items()}
    return ", ".join([section.name, *_written(values), *(f"{text} (default)" for text in _written(defaults))])


def _fsdp(arguments: Mapping[str, Any]) -> Rows:
    policy, classes = arguments["auto_wrap_policy"], arguments["transformer_cls_names_to_wrap"]
    units = {
        "TRANSFORMER_BASED_WRAP": ", ".join(classes) if classes else "the blocks that the model itself names",
        "SIZE_BASED_WRAP": f"modules of {arguments['min_num_params']:,} parameters and more",
    }
    checkpointing = "in each unit" if arguments["activation_checkpointing"] else "no"
    if arguments["activation_checkpointing_offload"]:
        checkpointing += ", kept on the CPU"
    rows = [
        ("wrapping", units.get(policy, "the model as a whole")),
        ("reshard", "after each forward pass" if arguments["reshard_after_forward"] else "after the backward pass"),
        ("offload", "parameters, gradients and optimizer state to the CPU" if arguments["cpu_offload"] else "none"),
        ("activation checkpointing", checkpointing),
    ]
    if copies := arguments.get("dp_replicate_size"):
        rows.insert(0, ("groups", f"{copies}, each with the whole model divided over its processes"))
    if (size := arguments.get("tp_size", 1)) > 1:
        rows.insert(0, ("tensor parallel", f"each layer over {size} processes in a row, by transformers' plan"))
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
        if written := list(_written(settings)):
            rows.append((name, ", ".join(written)))
    return rows


def _written(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield ``section.key=value`` for each value, at any depth."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _written(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={str(value).lower() if isinstance(value, bool) else value}"
