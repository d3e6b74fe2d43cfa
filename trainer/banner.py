"""The banner: one table that says what runs, before the first step; and the same facts for plan.json."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .launching import Plan


def facts(plan: Plan, **more: Any) -> dict[str, Any]:
    """Everything that plan.json holds."""
    return plan.as_dict() | more | {"versions": versions()}


def versions() -> dict[str, str]:
    """Versions of the packages that decide what runs; those not installed are left out."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"python": platform.python_version()}
    for name in ("samecurve", "torch", "accelerate", "deepspeed", "transformers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def banner(facts: Mapping[str, Any]) -> str:
    """The table for people."""
    f = facts
    batch = f"{f['micro_batch_size']} x {f['accumulation_steps']} x {f['world_size']} = {f['global_batch_size']}"
    precision = ", ".join(f"{part} {dtype}" for part, dtype in f["precision"].items())
    rate = f"{f['lr']:g}"
    if f["lr_scaling"] != "none":
        rate = (
            f"{f['lr_reference']:g} at batch {f['reference_batch_size']} -> {rate} at batch "
            f"{f['global_batch_size']} ({f['lr_scaling']})"
        )
    schedule = f["schedule"] + (f", {f['warmup_steps']} warm-up steps" if f["warmup_steps"] else "")
    rows = [
        ("launcher", f["launcher"]),
        ("strategy", f"{f['strategy']} ({f['model_class']})"),
        ("world size", str(f["world_size"])),
        ("device", f["device"] + (" (rehearsal: the real strategy over gloo)" if f["rehearsal"] else "")),
        ("precision", precision),
        ("batch", f"{batch}  (micro x accumulation x world = global)"),
        ("optimizer", f"{f['optimizer']}, lr {rate}, {schedule}"),
        ("clipping", "none" if f["max_grad_norm"] is None else f"global norm {f['max_grad_norm']:g}"),
        ("data", f"{_count(f['train_samples'])} training, {_count(f['evaluation_samples'])} evaluation samples"),
        ("length", f"{f['total_steps']:,} steps, {_count(f['steps_per_epoch'])} an epoch"),
        ("model", f"{f['parameters']:,} parameters ({f['trainable_parameters']:,} trainable)"),
        ("state per rank", f"{size(f['state_bytes_per_rank'])} of parameters, gradients and optimizer state"),
        ("output", f["output_dir"]),
    ]
    width = max(len(name) for name, _ in rows)
    lines = [f"{name:<{width}}  {value}" for name, value in rows]
    lines += [f"note: {notice}" for notice in f["notices"]]
    rule = "-" * min(100, max(map(len, lines)))
    return "\n".join([rule, *lines, rule])


def _count(number: int | None) -> str:
    return "(a stream: unknown)" if number is None else f"{number:,}"


def size(count: float) -> str:
    """Bytes for people: ``1.5 GiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
