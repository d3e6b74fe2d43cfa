"""The banner: the table of a run, before the first step. And the same facts for plan.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..optim.groups import group_texts
from ..plan import Plan
from ..text import listed, size, table, versions
from .machine import machine_text

Row = tuple[str, str]  # a name and its value


def facts(plan: Plan, **more: Any) -> dict[str, Any]:
    """Return everything that plan.json holds."""
    return plan.as_dict() | more | {"versions": versions()}


def banner(facts: Mapping[str, Any]) -> str:
    """Return the table for people: the plan, and the parts that were built from it."""
    planned = dict(plan_rows(facts))
    processes = f"{planned.pop('world size')} x {planned.pop('device')} by {facts['launcher']}"
    planned["strategy"] += f" ({facts['model_class']}), {processes}"
    clipping = planned.pop("clipping")
    if clipping != "none":
        planned["optimizer"] += f", clipped at {clipping}"
    rows = [("run", "{run_name}, in {output_dir}".format_map(facts)), *planned.items()]

    # Two groups with the same rate are with weight decay and without.
    groups = facts["optimizer_groups"]
    if len(groups) > 2 or len({group.get("lr") for group in groups}) > 1:
        rows += [("", text) for text in group_texts(groups)]

    model = "{parameters:,} parameters"
    if facts["trainable_parameters"] < facts["parameters"]:
        model += " ({trainable_parameters:,} trainable)"
    model = f"{model.format_map(facts)}; {size(facts['state_bytes_per_rank'])} of states per rank"
    rows += [
        ("data", f"{_data(facts)}; {_steps(facts)}"),
        ("model", model),
        ("machine", machine_text(facts["machine"])),
    ]
    return table(rows, facts["notices"])


def _data(facts: Mapping[str, Any]) -> str:
    """Return the numbers of samples. Evaluation sets with names have a number each."""
    train = _count(facts["train_samples"])
    evaluation = facts["evaluation_samples"]
    if not isinstance(evaluation, Mapping):
        return f"{train} training, {_count(evaluation)} evaluation samples"

    every = facts["evaluation_every"]
    sets = [f"{name} {_count(count)} {every[name]}" for name, count in evaluation.items()]
    return f"{train} training samples, to evaluate {listed(sets, 8)}"


def plan_rows(plan: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a plan, known before anything is built."""
    # Not at the top: `--version` imports this file, and none of the packages that launching needs.
    from ..launching.details import details

    device = plan["device"]
    if plan["rehearsal"]:
        device += " (rehearsal over gloo)"

    precision = ", ".join(f"{part} {dtype}" for part, dtype in plan["precision"].items())
    if len(set(plan["precision"].values())) == 1:
        precision = plan["precision"]["compute"]

    batch = "{micro_batch_size} x {accumulation_steps} x {world_size} = {global_batch_size}"
    rate = "{lr:g}"
    if plan["lr_scaling"] != "none":
        rate = "{lr_reference:g} at batch {reference_batch_size} -> {lr:g}"
        rate += " at batch {global_batch_size} ({lr_scaling})"
    clipping = "none" if plan["max_grad_norm"] is None else "global norm {max_grad_norm:g}"

    return [
        ("strategy", plan["strategy"]),
        ("world size", str(plan["world_size"])),
        ("device", device),
        ("precision", precision),
        ("batch", f"{batch} (micro x accumulation x world = global)".format_map(plan)),
        ("optimizer", f"{plan['optimizer']}, lr {rate.format_map(plan)}, {_schedule(plan)}"),
        ("clipping", clipping.format_map(plan)),
        *details(plan),
    ]


def _schedule(plan: Mapping[str, Any]) -> str:
    """Return the schedule and the warm-up, whose steps are unknown before the run's length is."""
    settings = [f"{key}={value}" for key, value in plan["schedule_settings"].items()]
    schedule = " ".join([plan["schedule"], *settings])
    warmup = ", {warmup_steps} warm-up steps" if plan["warmup_steps"] else ", warm-up"
    if plan["warmup_samples"] is not None:
        warmup += " ({warmup_samples:,} samples)"
    elif plan["warmup_fraction"] is not None:
        warmup += " ({warmup_fraction:g} of the run)"
    elif not plan["warmup_steps"]:
        return schedule
    return schedule + warmup.format_map(plan)


def _steps(facts: Mapping[str, Any]) -> str:
    """Return the length of a run, and its earlier end by ``stop_at``."""
    text = f"{facts['total_steps']:,} steps, {_count(facts['steps_per_epoch'])} an epoch"
    stop_at = facts.get("stop_at")
    if stop_at is None or stop_at >= facts["total_steps"]:
        return text
    return f"{text}, of which stop_at ends this run at {stop_at:,}"


def _count(number: int | None) -> str:
    return "(a stream: unknown)" if number is None else f"{number:,}"
