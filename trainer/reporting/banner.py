"""The banner: one table that says what runs, before the first step; and the same facts for
plan.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..optim.groups import group_texts
from ..plan import Plan
from ..text import size, table, versions
from .machine import machine_text


def facts(plan: Plan, **more: Any) -> dict[str, Any]:
    """Return everything that plan.json holds."""
    return plan.as_dict() | more | {"versions": versions()}


def banner(facts: Mapping[str, Any]) -> str:
    """Return the table for people: the plan, and what was built from it."""
    f = facts
    rows = [("launcher", f["launcher"]), *plan_rows(f)]
    rows[1] = ("strategy", f"{f['strategy']} ({f['model_class']})")
    at = next(number for number, (name, _) in enumerate(rows) if name == "optimizer")
    shared, groups = group_texts(
        f["optimizer_groups"], {"lr": f["lr"], "parameters": f["trainable_parameters"]}
    )
    rows[at : at + 1] = [
        ("optimizer", f"{rows[at][1]}; {shared}"),
        *(("", text) for text in groups),
    ]
    rows += [
        ("machine", machine_text(f["machine"])),
        (
            "data",
            f"{_count(f['train_samples'])} training, {_count(f['evaluation_samples'])} evaluation samples",
        ),
        ("length", f"{f['total_steps']:,} steps, {_count(f['steps_per_epoch'])} an epoch"),
        ("model", f"{f['parameters']:,} parameters ({f['trainable_parameters']:,} trainable)"),
        (
            "state per rank",
            f"{size(f['state_bytes_per_rank'])} of parameters, gradients and optimizer state",
        ),
        ("output", f["output_dir"]),
    ]
    return table(rows, f["notices"])


def plan_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of what a plan says before anything is built."""
    p = plan
    ranks = p["data_parallel_size"]
    batch = (
        f"{p['micro_batch_size']} x {p['accumulation_steps']} x {ranks} = {p['global_batch_size']}"
    )
    world = "world" if ranks == p["world_size"] else "world / tensor parallel"
    rate = f"{p['lr']:g}"
    if p["lr_scaling"] != "none":
        rate = (
            f"{p['lr_reference']:g} at batch {p['reference_batch_size']} -> {rate} at batch "
            f"{p['global_batch_size']} ({p['lr_scaling']})"
        )
    from ..launching.details import (
        details,
    )  # after --version, which imports none of the packages that it names

    return [
        ("strategy", p["strategy"]),
        ("world size", str(p["world_size"])),
        (
            "device",
            p["device"] + (" (rehearsal: the real strategy over gloo)" if p["rehearsal"] else ""),
        ),
        ("precision", ", ".join(f"{part} {dtype}" for part, dtype in p["precision"].items())),
        ("batch", f"{batch}  (micro x accumulation x {world} = global)"),
        ("optimizer", f"{p['optimizer']}, lr {rate}, {_schedule(p)}"),
        (
            "clipping",
            "none" if p["max_grad_norm"] is None else f"global norm {p['max_grad_norm']:g}",
        ),
        *details(p),
    ]


def _schedule(p: Mapping[str, Any]) -> str:
    parts = [
        p["schedule"] + "".join(f" {key}={value}" for key, value in p["schedule_settings"].items())
    ]
    asked = ""
    if p["warmup_samples"] is not None:
        asked = f" ({p['warmup_samples']:,} samples)"
    if p["warmup_fraction"] is not None:
        asked = f" ({p['warmup_fraction']:g} of the run)"
    if p["warmup_steps"]:
        parts.append(f"{p['warmup_steps']} warm-up steps{asked}")
    elif asked:  # the length of the run is not known yet
        parts.append(f"warm-up{asked}")
    return ", ".join(parts)


def _count(number: int | None) -> str:
    return "(a stream: unknown)" if number is None else f"{number:,}"
