"""Compare runs: which learned under the same settings, whether their curves are the same, and what each cost."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ...config.fingerprint import fingerprint
from ...errors import ConfigError, Origin, Problem
from ...reporting.machine import machine_text
from ...text import size
from ..planner.costs import sent_by_plan
from ..runs import Run
from ..trials import BOUNDS, Bounds, measure_gap, precision_of

# Settings that say how a run is laid out; what it learns does not depend on them.
_LAYOUT = ("strategy", "world_size", "launcher", "device", "distributed_type", "micro_batch_size", "accumulation_steps")
_PRECISIONS = {"no": "full precision", "bf16": "bf16", "fp16": "fp16", "tf32": "tf32"}


def make_report(runs: Sequence[Run]) -> dict[str, Any]:
    """Collect everything that the table, the JSON and the page show.

    Runs whose settings decide the same numbers form a group, and are held against the first run of their group. The
    largest group is the main one: it is what the others' settings are held against, and what the answer is about.

    Raises:
        ConfigError: no run has logged a step.
    """
    if not any(map(_logged, runs)):
        paths = ", ".join(run.path for run in runs)
        raise ConfigError(Problem(origin=Origin(paths), rule="no step was logged; there is nothing to compare"))
    names = _distinct_names(runs)
    groups = _group_by_settings(runs)
    main = max(groups, key=len)
    entries = [_entry(run, name) for run, name in zip(runs, names, strict=True)]
    usual = _settings(runs[main[0]])
    for at, (run, entry) in enumerate(zip(runs, entries, strict=True)):
        entry["group"] = next((number for number, group in enumerate(groups) if at in group), None)
        own = _settings(run) if run.plan else usual
        keys = sorted(key for key in own.keys() | usual.keys() if own.get(key) != usual.get(key))
        entry["differs"] = {key: [usual.get(key), own.get(key)] for key in keys}
    judged = [_judge([runs[at] for at in group], [names[at] for at in group]) for group in groups]
    return {
        "runs": entries,
        "groups": judged,
        "main": groups.index(main),
        "settings": _split_settings(runs, names),
        "recommendation": _recommend([entries[at] for at in main], judged[groups.index(main)], len(entries)),
    }


def _logged(run: Run) -> bool:
    return any(loss is not None for loss in run.curve("loss").values())


def _distinct_names(runs: Sequence[Run]) -> list[str]:
    short = [run.name for run in runs]
    return short if len(set(short)) == len(short) else [f"{run.name} ({at})" for at, run in enumerate(runs, 1)]


def _group_by_settings(runs: Sequence[Run]) -> list[list[int]]:
    """Group the positions of the runs that logged something by equal settings."""
    found: dict[str, list[int]] = {}
    for at, run in enumerate(runs):
        if _logged(run):
            found.setdefault(json.dumps(_settings(run), sort_keys=True, default=str), []).append(at)
    return list(found.values())


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings that decide the numbers by dotted key, without those that are not set."""
    return {key: value for key, value in _flat(fingerprint(run.plan)) if value is not None}


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _split_settings(runs: Sequence[Run], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Split the settings into those that all runs share and, for each other key, the value of each run."""
    found = {
        name: {
            **{key: run.plan[key] for key in _LAYOUT if key in run.plan},
            **dict(_flat({"machine": run.plan.get("machine", {})})),
            **_settings(run),
        }
        for name, run in zip(names, runs, strict=True)
        if run.plan
    }
    keys = dict.fromkeys(key for values in found.values() for key in values)
    columns = {key: {name: values.get(key) for name, values in found.items()} for key in keys}
    equal = {key: all(value == next(iter(row.values())) for value in row.values()) for key, row in columns.items()}
    return {
        "same": {key: next(iter(row.values())) for key, row in columns.items() if equal[key]},
        "different": {key: row for key, row in columns.items() if not equal[key]},
    }


def _entry(run: Run, name: str) -> dict[str, Any]:
    logged = [row for row in run.rows if row.get("loss") is not None]
    last = logged[-1] if logged else {"step": 0}
    # The first reading also holds what is paid once.
    steady = sorted(row["samples_per_second"] for row in logged[1:] if row.get("samples_per_second"))
    sent = sent_by_plan(run.plan)
    return {
        "name": name,
        "path": run.path,
        "ended": bool(run.summary),
        "state": _state(run, int(last["step"])),
        **{key: run.plan.get(key) for key in ("strategy", "world_size", "mixed_precision", "global_batch_size", "lr")},
        "device": run.plan.get("device"),
        "steps": int(last["step"]),
        "samples_per_second": steady[len(steady) // 2] if steady else None,
        "tokens_per_second": run.summary.get("tokens_per_second"),
        "peak_memory_bytes": run.summary.get("peak_memory_bytes") or _known(last.get("peak_memory_bytes")),
        "memory": {phase: max(next(iter(one.values()))) for phase, one in run.summary.get("memory", {}).items()},
        "machine": machine_text(run.plan["machine"]) if "machine" in run.plan else None,
        "state_bytes_per_rank": run.plan.get("state_bytes_per_rank"),
        "sent_bytes_per_step": sent,
        "sent_bytes": None if sent is None else sent * int(last["step"]),
        "seconds": run.summary.get("seconds", {}),
        "final": {
            **({"loss": last["loss"]} if logged else {}),
            **{key: value for key, value in run.evaluation.items() if key.count("/") == 1 and value is not None},
        },
        "curves": {
            "train": [[row["step"], row["samples"], row.get("seconds", 0), row["loss"]] for row in logged],
            "eval": [
                [row["step"], row["samples"], _seconds_at(logged, row["step"]), row["eval/loss"]]
                for row in run.rows
                if row.get("eval/loss") is not None
            ],
        },
    }


def _state(run: Run, step: int) -> str:
    """Describe what became of a run that did not reach its last step; empty for one that did."""
    total = run.plan.get("total_steps")
    of = "" if total is None else f" of {total}"
    if run.error:
        return f"failed: {run.error}"
    if not step:
        return "logged no step"
    if not run.summary:
        return f"did not end; last logged step {step}{of}"
    return "" if total in (None, step) else f"ended at step {step}{of}"


def _known(value: float | None) -> list[int]:
    return [int(value)] if value else []


def _seconds_at(logged: Sequence[Mapping[str, Any]], step: int) -> float:
    """Return the seconds of training at the last logged step up to ``step``: evaluation rows carry no clock."""
    return max((float(row.get("seconds", 0)) for row in logged if row["step"] <= step), default=0.0)


def _judge(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    """Compare the curves of a group with that of its first run."""
    precision = precision_of(runs[0].plan)
    bounds, reference = BOUNDS[precision], runs[0].curve("loss")
    against: list[dict[str, Any]] = []
    for run, name in zip(runs[1:], names[1:], strict=True):
        gap = measure_gap(run.curve("loss"), reference)
        if gap is None:
            against.append({"name": name, "same": None})
            continue
        same = gap.first <= bounds.first and gap.mean <= bounds.mean
        against.append({"name": name, "same": same, **{k: _finite(v) for k, v in vars(gap).items()}})
    verdict, why = _verdict(names[0], against, bounds, precision)
    return {"runs": list(names), "verdict": verdict, "why": why, "against": against}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no NaN


def _verdict(first: str, against: Sequence[Mapping[str, Any]], bounds: Bounds, precision: str) -> tuple[str, str]:
    within = f"bounds for {_PRECISIONS[precision]}: first step {bounds.first:g}, mean {bounds.mean:g}"
    apart = [entry for entry in against if entry["same"] is False]
    alike = [entry for entry in against if entry["same"]]
    unlike = "; ".join(
        f"{entry['name']} logged no step that {first} logged" for entry in against if entry["same"] is None
    )
    if apart:
        numbers = ", ".join(
            f"{e['name']} (first step {_scientific(e['first'])}, mean {_scientific(e['mean'])})" for e in apart
        )
        return "different curves", "; ".join(filter(None, [f"apart from {first}: {numbers}", within, unlike]))
    if alike:
        worst = max(alike, key=lambda entry: float(entry["largest"]))
        why = (
            f"relative differences to {first}: first step at most {max(e['first'] for e in alike):.1e}, at any step "
            f"at most {worst['largest']:.1e} ({worst['name']}, step {worst['largest_step']})"
        )
        return "the same curve", "; ".join(filter(None, [why, within, unlike]))
    return ("no common step", unlike) if unlike else ("one run", "no other run has these settings")


def _scientific(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.1e}"


def _recommend(entries: Sequence[Mapping[str, Any]], group: Mapping[str, Any], runs: int) -> str:
    if runs == 1:
        return "One run alone: there is nothing to choose."
    if len(entries) == 1:
        return "No two runs learn under the same settings: there is nothing to choose by speed or memory."
    measured = [e for e in entries if e["ended"] and e["samples_per_second"] and e["peak_memory_bytes"]]
    if len(measured) < 2:
        return "Fewer than two runs with the same settings came to an end and measured their speed: nothing to choose."
    among = "" if len(measured) == runs else f"Of the {len(measured)} that ended with the same settings: "
    speed = sorted(measured, key=lambda entry: -float(entry["samples_per_second"]))
    fastest, second = speed[0], speed[1]
    ahead = fastest["samples_per_second"] / second["samples_per_second"] - 1
    text = (
        f"take {fastest['name']}: {fastest['samples_per_second']:.0f} samples/s, {ahead:.0%} ahead of {second['name']}"
    )
    if ahead < 0.05:
        text += " (so little that a repeat may turn it around)"
    smallest = min(speed, key=lambda entry: max(entry["peak_memory_bytes"]))
    memory = {entry["name"]: max(entry["peak_memory_bytes"]) for entry in (fastest, smallest)}
    if memory[smallest["name"]] < 0.98 * memory[fastest["name"]]:
        slower = 1 - smallest["samples_per_second"] / fastest["samples_per_second"]
        text += (
            f"; where memory is short, {smallest['name']} needs {size(memory[smallest['name']])} a rank instead of "
            f"{size(memory[fastest['name']])} and is {slower:.0%} slower"
        )
    else:
        text += f", and no other needs noticeably less memory ({size(memory[fastest['name']])} a rank)"
    if group["verdict"] == "the same curve":
        text += "; what is learnt is the same, so speed and memory decide"
    elif group["verdict"] == "different curves":
        text += "; but the curves differ: find out why before choosing by speed"
    if len({entry["machine"] for entry in speed} - {None}) > 1:
        text += "; but not on the same machine: speed and memory say as much of the machines as of the strategies"
    if any(entry["device"] == "cpu" for entry in speed):
        text += "; measured on CPUs, so measure again on the GPUs that will be used"
    return f"{among or text[0].upper()}{text if among else text[1:]}."
