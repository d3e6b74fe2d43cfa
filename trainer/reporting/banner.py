"""The banner: the table of a run, before the first step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..launching.details import details
from ..text import listed, size, table
from .machine import machine_text


def banner(facts: Mapping[str, Any]) -> str:
    """Return the table for people from the content of plan.json."""
    model = "{parameters:,} parameters"
    if facts["trainable_parameters"] < facts["parameters"]:
        model += " ({trainable_parameters:,} trainable)"
    model = f"{model.format_map(facts)}; {size(facts['state_bytes_per_rank'])} of states per rank"
    rows = [
        ("run", "{run_name}, in {output_dir}".format_map(facts)),
        *plan_rows(facts),
        ("data", f"{_data(facts)}; {_steps(facts)}"),
        ("model", model),
        ("machine", machine_text(facts["machine"])),
    ]
    return table(rows, facts["notices"])


def _data(facts: Mapping[str, Any]) -> str:
    """Return the numbers of samples, of each evaluation set that has a name."""
    train = _count(facts["train_samples"])
    evaluation = facts["evaluation_samples"]
    if not isinstance(evaluation, Mapping):
        return f"{train} training, {_count(evaluation)} evaluation samples"

    sets = [f"{name} {_count(count)}" for name, count in evaluation.items()]
    return f"{train} training samples, to evaluate {listed(sets, 8)}"


def plan_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return names and values of a plan, known before anything is built."""
    rows = {
        "strategy": "{strategy}, {world_size} x {device} by {launcher}",
        "precision": ", ".join(f"{part} {dtype}" for part, dtype in plan["precision"].items()),
        "batch": "{micro_batch_size} x {accumulation_steps} x {world_size} = {global_batch_size} "
        "(micro x accumulation x world = global)",
        "optimizer": "{optimizer}, lr {lr:g}, {told}",
    }
    if plan["context_parallel"] > 1:
        rows["batch"] = rows["batch"].replace("{world_size}", "{world_size} / {context_parallel}")
    if plan["rehearsal"]:
        rows["strategy"] += " (rehearsal over gloo)"
    if len(set(plan["precision"].values())) == 1:
        rows["precision"] = "{precision[compute]}"
    if plan["lr_scaling"] != "none":
        rows["optimizer"] = (
            "{optimizer}, lr {lr_reference:g} at batch {reference_batch_size} -> {lr:g} "
            "at batch {global_batch_size} ({lr_scaling}), {told}"
        )
    if plan["max_grad_norm"]:
        rows["optimizer"] += ", clipped at global norm {max_grad_norm:g}"
    values = {**plan, "told": _schedule(plan)}
    return [(name, text.format_map(values)) for name, text in rows.items()] + details(plan)


def _schedule(plan: Mapping[str, Any]) -> str:
    """Return the schedule and the warm-up, whose steps are unknown before the run's length is."""
    settings = [f"{key}={value}" for key, value in plan["schedule_settings"].items()]
    schedule = " ".join([plan["schedule"], *settings])
    if plan["warmup_steps"]:
        schedule += f", {plan['warmup_steps']} warm-up steps"
    elif plan["warmup_fraction"]:
        schedule += f", warm-up in {plan['warmup_fraction']:g} of the run"
    return schedule


def _steps(facts: Mapping[str, Any]) -> str:
    """Return the length of a run, and its earlier end by ``stop_at``."""
    text = "{total_steps:,} steps"
    if facts["steps_per_epoch"]:
        text += ", {steps_per_epoch:,} an epoch"
    if (facts["stop_at"] or math.inf) < facts["total_steps"]:
        text += ", of which stop_at ends this run at {stop_at:,}"
    return text.format_map(facts)


def _count(number: int | None) -> str:
    return "(a stream: unknown)" if number is None else f"{number:,}"
