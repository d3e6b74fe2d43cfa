"""Runs beside each other: what differed, whether the curves are one curve, what it cost, and what to take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..banner import size
from .runs import Run

# What decides the mathematics; beside it a run may differ in strategy, world size, micro-batch and accumulation.
_MATHEMATICS = (
    "task", "task_settings", "seed", "global_batch_size", "optimizer", "optimizer_settings", "lr", "schedule",
    "warmup_steps", "final_lr_ratio", "max_grad_norm", "mixed_precision", "parameters", "train_samples", "total_steps",
)  # fmt: skip
_SHOWN = ("strategy", "world_size", "launcher", "device", "distributed_type", "micro_batch_size", "accumulation_steps")
# Relative bounds: the first loss differs by the order of sums alone; an optimizer amplifies that later.
_FIRST = {"no": 1e-5, "bf16": 2e-2, "fp16": 2e-2}
_MEAN = {"no": 1e-2, "bf16": 5e-2, "fp16": 5e-2}
_CALLED = {"no": "full precision", "bf16": "bf16", "fp16": "fp16"}


def report(runs: Sequence[Run]) -> dict[str, Any]:
    """Everything that the table, the JSON and the page show. The first run is what the others are held against."""
    names = _names(runs)
    entries = [_entry(run, name) for run, name in zip(runs, names, strict=True)]
    differences = _differences(runs)
    parity = _parity(runs, names, differences)
    return {
        "runs": entries,
        "differences": differences,
        "parity": parity,
        "recommendation": _recommendation(entries, parity),
    }


def _names(runs: Sequence[Run]) -> list[str]:
    short = [run.name for run in runs]
    return short if len(set(short)) == len(short) else [f"{run.name} ({at})" for at, run in enumerate(runs, 1)]


def _entry(run: Run, name: str) -> dict[str, Any]:
    logged = [row for row in run.rows if row.get("loss") is not None]
    last = logged[-1]
    # The first reading also holds what is paid once.
    steady = [row["samples_per_second"] for row in logged[1:] if row.get("samples_per_second")] or [0.0]
    memory = run.summary.get("peak_memory_bytes") or [int(last.get("peak_memory_bytes", 0))]
    sent = run.plan.get("sent_bytes_per_step")
    return {
        "name": name,
        "path": run.path,
        **{key: run.plan.get(key) for key in ("strategy", "world_size", "mixed_precision", "global_batch_size", "lr")},
        "device": run.plan.get("device"),
        "steps": int(last["step"]),
        "samples_per_second": sorted(steady)[len(steady) // 2],
        "tokens_per_second": run.summary.get("tokens_per_second"),
        "peak_memory_bytes": memory,
        "state_bytes_per_rank": run.plan.get("state_bytes_per_rank"),
        "sent_bytes_per_step": sent,
        "sent_bytes": None if sent is None else int(sent) * int(last["step"]),
        "seconds": run.summary.get("seconds", {}),
        "final": {"loss": last["loss"], **{k: v for k, v in run.evaluation.items() if k.count("/") == 1}},
        "curves": {
            "train": [[row["step"], row["samples"], row.get("seconds", 0), row["loss"]] for row in logged],
            "eval": [
                [row["step"], row["samples"], _seconds_at(logged, row["step"]), row["eval/loss"]]
                for row in run.rows
                if row.get("eval/loss") is not None
            ],
        },
    }


def _seconds_at(logged: Sequence[Mapping[str, Any]], step: int) -> float:
    """Seconds of training at the last logged step up to ``step``: evaluation rows carry no clock."""
    return max((float(row.get("seconds", 0)) for row in logged if row["step"] <= step), default=0.0)


def _differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    values = {key: [run.plan.get(key) for run in runs] for key in (*_SHOWN, *_MATHEMATICS)}
    return {key: found for key, found in values.items() if any(value != found[0] for value in found)}


def _parity(runs: Sequence[Run], names: Sequence[str], differences: Mapping[str, Any]) -> dict[str, Any]:
    other = [key for key in differences if key in _MATHEMATICS]
    if other:
        return {"verdict": "not comparable", "why": f"the runs differ in {', '.join(other)}", "against": []}
    precision = str(runs[0].plan.get("mixed_precision", "no"))
    reference = dict(runs[0].curve("loss"))
    found: list[dict[str, Any]] = []
    for run, name in zip(runs[1:], names[1:], strict=True):
        curve = dict(run.curve("loss"))
        gaps = {
            s: abs(curve[s] - reference[s]) / max(abs(reference[s]), 1e-12) for s in sorted(curve.keys() & reference)
        }
        if not gaps:
            return {"verdict": "not comparable", "why": f"{name} logged no step that {names[0]} logged", "against": []}
        first, worst = min(gaps), max(gaps, key=lambda step: gaps[step])
        mean = sum(gaps.values()) / len(gaps)
        same = gaps[first] <= _FIRST[precision] and mean <= _MEAN[precision]
        found.append(
            {"name": name, "same": same, "first_step": first, "first": gaps[first], "mean": mean,
             "largest": gaps[worst], "largest_step": worst}
        )  # fmt: skip
    if not found:
        return {"verdict": "one run", "why": "nothing to hold it against", "against": []}
    bounds = f"bounds for {_CALLED[precision]}: first step {_FIRST[precision]:g}, mean {_MEAN[precision]:g}"
    if all(entry["same"] for entry in found):
        largest = max(found, key=lambda entry: entry["largest"])
        why = (
            f"relative differences to {names[0]}: first step at most {max(e['first'] for e in found):.1e}, at any step "
            f"at most {largest['largest']:.1e} ({largest['name']}, step {largest['largest_step']}); {bounds}"
        )
        return {"verdict": "the same curve", "why": why, "against": found}
    apart = ", ".join(
        f"{e['name']} (first step {e['first']:.1e}, mean {e['mean']:.1e})" for e in found if not e["same"]
    )
    return {"verdict": "different curves", "why": f"apart from {names[0]}: {apart}; {bounds}", "against": found}


def _recommendation(entries: Sequence[Mapping[str, Any]], parity: Mapping[str, Any]) -> str:
    if len(entries) == 1:
        return "One run alone: there is nothing to choose."
    speed = sorted(entries, key=lambda entry: -entry["samples_per_second"])
    fastest, second = speed[0], speed[1]
    ahead = fastest["samples_per_second"] / max(second["samples_per_second"], 1e-9) - 1
    smallest = min(entries, key=lambda entry: max(entry["peak_memory_bytes"]))
    text = (
        f"Take {fastest['name']}: {fastest['samples_per_second']:.0f} samples/s, {ahead:.0%} ahead of {second['name']}"
    )
    if ahead < 0.05:
        text += " (so little that a repeat may turn it around)"
    memory = {entry["name"]: max(entry["peak_memory_bytes"]) for entry in (fastest, smallest)}
    if memory[smallest["name"]] < 0.98 * memory[fastest["name"]]:
        slower = 1 - smallest["samples_per_second"] / max(fastest["samples_per_second"], 1e-9)
        text += (
            f"; where memory is short, {smallest['name']} needs {size(memory[smallest['name']])} a rank instead of "
            f"{size(memory[fastest['name']])} and is {slower:.0%} slower"
        )
    else:
        text += f", and no other needs noticeably less memory ({size(memory[fastest['name']])} a rank)"
    if parity["verdict"] == "the same curve":
        text += "; what is learnt is the same, so speed and memory decide"
    elif parity["verdict"] == "different curves":
        text += "; but the curves differ: find out why before choosing by speed"
    if any(entry["device"] == "cpu" for entry in entries):
        text += "; measured on CPUs, so measure again on the GPUs that will be used"
    return text + "."


def table(told: Mapping[str, Any]) -> str:
    """The report for a terminal."""
    heads = ["run", "strategy", "world", "samples/s", "peak memory", "states", "sent a step", "final loss"]
    metrics = list(dict.fromkeys(key for entry in told["runs"] for key in entry["final"] if key != "loss"))
    cells = [[*heads, *metrics]]
    for entry in told["runs"]:
        states, sent = entry["state_bytes_per_rank"], entry["sent_bytes_per_step"]
        cells.append(
            [
                entry["name"], str(entry["strategy"]), str(entry["world_size"]), f"{entry['samples_per_second']:.0f}",
                size(max(entry["peak_memory_bytes"])), "" if states is None else size(states),
                "" if sent is None else size(sent), f"{entry['final']['loss']:.4f}",
                *(f"{entry['final'][key]:.4f}" if key in entry["final"] else "" for key in metrics),
            ]
        )  # fmt: skip
    widths = [max(len(line[at]) for line in cells) for at in range(len(cells[0]))]
    lines = [
        "  ".join(
            text.ljust(w) if at < 2 else text.rjust(w) for at, (text, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in cells
    ]
    names = [entry["name"] for entry in told["runs"]]
    for key, values in told["differences"].items():
        if key != "strategy":
            lines.append(f"{key}: " + ", ".join(f"{n} {v}" for n, v in zip(names, values, strict=True)))
    lines += ["", f"parity: {told['parity']['verdict']}: {told['parity']['why']}", told["recommendation"]]
    return "\n".join(line.rstrip() for line in lines)
