"""The banner: the table of what runs, before the first step; and the same facts for plan.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..optim.groups import group_texts
from ..plan import Plan
from ..text import size, table, versions
from .machine import machine_text

Row = tuple[str, str]  # a name and its value


def facts(plan: Plan, **more: Any) -> dict[str, Any]:
    """Return everything that plan.json holds."""
    return plan.as_dict() | more | {"versions": versions()}


def banner(facts: Mapping[str, Any]) -> str:
    """Return the table for people: the plan, and what was built from it."""
    rows = [("run", facts["run_name"]), ("launcher", facts["launcher"])]
    for name, value in plan_rows(facts):
        if name == "strategy":
            rows.append((name, f"{value} ({facts['model_class']})"))
        elif name == "optimizer":
            rows.extend(_optimizer_rows(value, facts))
        else:
            rows.append((name, value))

    train_samples = _count(facts["train_samples"])
    steps_per_epoch = _count(facts["steps_per_epoch"])
    parameters = f"{facts['parameters']:,} parameters"
    state_size = size(facts["state_bytes_per_rank"])
    rows += [
        ("machine", machine_text(facts["machine"])),
        *_data_rows(train_samples, facts),
        ("length", f"{_steps(facts)}, {steps_per_epoch} an epoch"),
        ("model", f"{parameters} ({facts['trainable_parameters']:,} trainable)"),
        ("state per rank", f"{state_size} of parameters, gradients and optimizer state"),
        ("output", facts["output_dir"]),
    ]
    if facts.get("callbacks"):
        rows.append(("callbacks", ", ".join(map(_callback, facts["callbacks"]))))
    return table(rows, facts["notices"])


def _optimizer_rows(planned: str, facts: Mapping[str, Any]) -> list[Row]:
    """Return the optimizer's row, and a row for each parameter group."""
    groups = group_texts(facts["optimizer_groups"])
    return [("optimizer", planned), *(("", group) for group in groups)]


def _data_rows(train_samples: str, facts: Mapping[str, Any]) -> list[Row]:
    """Return the row of the data, and one of the sets to measure on where they have names."""
    samples = facts["evaluation_samples"]
    if not isinstance(samples, Mapping):
        return [("data", f"{train_samples} training, {_count(samples)} evaluation samples")]

    sets = []
    for name, count in samples.items():
        sets.append(f"{name}: {_count(count)} samples, {facts['evaluation_every'][name]}")
    return [("data", f"{train_samples} training samples"), ("evaluation", "; ".join(sets))]


def plan_rows(plan: Mapping[str, Any]) -> list[Row]:
    """Return the rows of a plan, which is known before anything is built."""
    # Not at the top: `--version` imports this file, and none of the packages that launching needs.
    from ..launching.details import details

    device = plan["device"]
    if plan["rehearsal"]:
        device += " (rehearsal: the real strategy over gloo)"

    precision = ", ".join(f"{part} {dtype}" for part, dtype in plan["precision"].items())

    max_grad_norm = plan["max_grad_norm"]
    clipping = "none" if max_grad_norm is None else f"global norm {max_grad_norm:g}"

    return [
        ("strategy", plan["strategy"]),
        ("world size", str(plan["world_size"])),
        ("device", device),
        ("precision", precision),
        ("batch", _batch(plan)),
        ("optimizer", f"{plan['optimizer']}, lr {_learning_rate(plan)}, {_schedule(plan)}"),
        ("clipping", clipping),
        *details(plan),
    ]


def _batch(plan: Mapping[str, Any]) -> str:
    factors = f"{plan['micro_batch_size']} x {plan['accumulation_steps']} x {plan['world_size']}"
    return f"{factors} = {plan['global_batch_size']}  (micro x accumulation x world = global)"


def _learning_rate(plan: Mapping[str, Any]) -> str:
    rate = f"{plan['lr']:g}"
    if plan["lr_scaling"] == "none":
        return rate

    reference = f"{plan['lr_reference']:g} at batch {plan['reference_batch_size']}"
    return f"{reference} -> {rate} at batch {plan['global_batch_size']} ({plan['lr_scaling']})"


def _schedule(plan: Mapping[str, Any]) -> str:
    schedule = str(plan["schedule"])
    for key, value in plan["schedule_settings"].items():
        schedule += f" {key}={value}"

    configured = ""
    if plan["warmup_samples"] is not None:
        configured = f" ({plan['warmup_samples']:,} samples)"
    if plan["warmup_fraction"] is not None:
        configured = f" ({plan['warmup_fraction']:g} of the run)"

    if plan["warmup_steps"]:
        return f"{schedule}, {plan['warmup_steps']} warm-up steps{configured}"
    if configured:  # the length of the run is not known yet
        return f"{schedule}, warm-up{configured}"
    return schedule


def _callback(entry: str | Mapping[str, Any]) -> str:
    """Return a callback as the config names it, with its settings behind it."""
    if isinstance(entry, str):
        return entry
    [(named, settings)] = entry.items()
    texts = [f"{key} {value}" for key, value in (settings or {}).items()]
    return f"{named} ({', '.join(texts)})" if texts else named


def _steps(facts: Mapping[str, Any]) -> str:
    """Return the length of a run, and where ``stop_at`` ends it."""
    stop_at = facts.get("stop_at")
    if stop_at is None or stop_at >= facts["total_steps"]:
        return f"{facts['total_steps']:,} steps"
    return f"{facts['total_steps']:,} steps, of which stop_at ends this run at {stop_at:,}"


def _count(number: int | None) -> str:
    return "(a stream: unknown)" if number is None else f"{number:,}"
