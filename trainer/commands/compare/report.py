"""Compare runs: which learned under the same settings, whether their curves are the same, and what
each cost.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from ...config.fingerprint import fingerprint
from ...errors import ConfigError, Origin, Problem
from ...optim.groups import group_names
from ...plan import Plan
from ...reporting.machine import machine_text
from ...reporting.speed import UNITS, steady_speed
from ...text import is_headline
from ..nudged import is_nudged
from ..planner.costs import sent_by_plan
from ..runs import Run
from ..trials import BOUNDS, NUDGE_FACTOR, Bounds, Sameness, judge, measure_gap, precision_of
from .choice import recommend

# Settings that say how a run is laid out; what it learns does not depend on them.
_LAYOUT = (
    "strategy",
    "world_size",
    "launcher",
    "device",
    "distributed_type",
    "micro_batch_size",
    "accumulation_steps",
)
_PRECISIONS = {"no": "full precision", "bf16": "bf16", "fp16": "fp16", "tf32": "tf32"}


def make_report(runs: Sequence[Run]) -> dict[str, Any]:
    """Collect everything that the table, the JSON and the page show.

    Runs whose settings decide the same numbers form a group, and are held against the first run of
    their group. The largest group is the main one: it is what the others' settings are held
    against, and what the answer is about.

    Raises:
        ConfigError: no run has logged a step.
    """
    if not any(map(_logged, runs)):
        paths = ", ".join(run.path for run in runs)
        raise ConfigError(
            Problem(origin=Origin(paths), rule="no step was logged; there is nothing to compare")
        )
    runs = _known_alike(runs)
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
        "recommendation": recommend(
            [entries[at] for at in main], judged[groups.index(main)], len(entries)
        ),
    }


def _logged(run: Run) -> bool:
    return any(loss is not None for loss in run.curve("loss").values())


def _distinct_names(runs: Sequence[Run]) -> list[str]:
    short = [run.name for run in runs]
    return (
        short
        if len(set(short)) == len(short)
        else [f"{run.name} ({at})" for at, run in enumerate(runs, 1)]
    )


def _group_by_settings(runs: Sequence[Run]) -> list[list[int]]:
    """Group the positions of the runs that logged something by equal settings."""
    found: dict[str, list[int]] = {}
    for at, run in enumerate(runs):
        if _logged(run):
            found.setdefault(json.dumps(_settings(run), sort_keys=True, default=str), []).append(at)
    return list(found.values())


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings that decide the numbers by dotted key, without those that are not set."""
    found = fingerprint(run.plan)
    if is_nudged(run):  # of a run that is the same but for its last places
        found["weights"] = None
    groups = found.pop("optimizer_groups", None)
    if groups:  # what the settings of the optimizer became, whoever built it
        found.pop("optimizer_settings", None)
        named = zip(group_names(groups), groups, strict=True)
        found["optimizer_groups"] = {name: _beside(group, found.get("lr")) for name, group in named}
    return {key: value for key, value in _flat(found) if value is not None}


def _beside(group: Mapping[str, Any], lr: object) -> dict[str, Any]:
    """Return what a group says beside the run's own rate."""
    return {
        key: value for key, value in group.items() if key != "name" and (key, value) != ("lr", lr)
    }


def _known_alike(runs: Sequence[Run]) -> list[Run]:
    """Leave out what only some runs say of how they were built: those of older versions do not."""
    said = [run.plan.keys() for run in runs if run.plan]
    partly = [
        key
        for key in ("optimizer_groups", "schedule_class")
        if not all(key in keys for keys in said)
    ]
    return [
        replace(run, plan={key: run.plan[key] for key in run.plan if key not in partly})
        for run in runs
    ]


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _split_settings(runs: Sequence[Run], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Split the settings into those that all runs share and, for each other key, the value of each
    run.
    """
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
    equal = {
        key: all(value == next(iter(row.values())) for value in row.values())
        for key, row in columns.items()
    }
    return {
        "same": {key: next(iter(row.values())) for key, row in columns.items() if equal[key]},
        "different": {key: row for key, row in columns.items() if not equal[key]},
    }


def _entry(run: Run, name: str) -> dict[str, Any]:
    logged = [row for row in run.rows if row.get("loss") is not None]
    last = logged[-1] if logged else {"step": 0}
    sent = sent_by_plan(run.plan)
    return {
        "name": name,
        "path": run.path,
        "ended": bool(run.summary),
        "state": _state(run, int(last["step"])),
        **{
            key: run.plan.get(key)
            for key in ("strategy", "world_size", "mixed_precision", "global_batch_size", "lr")
        },
        "device": run.plan.get("device"),
        "steps": int(last["step"]),
        **_speeds(run),
        "layout": _layout(run),
        "peak_memory_bytes": run.summary.get("peak_memory_bytes")
        or _known(last.get("peak_memory_bytes")),
        "memory": {
            phase: max(next(iter(one.values())))
            for phase, one in run.summary.get("memory", {}).items()
        },
        "machine": machine_text(run.plan["machine"]) if "machine" in run.plan else None,
        "state_bytes_per_rank": run.plan.get("state_bytes_per_rank"),
        "sent_bytes_per_step": sent,
        "sent_bytes": None if sent is None else sent * int(last["step"]),
        "seconds": run.summary.get("seconds", {}),
        "final": {
            **({"loss": last["loss"]} if logged else {}),
            **{
                key: value
                for key, value in run.evaluation.items()
                if is_headline(key) and value is not None
            },
        },
        "best": _best(run),
        "curves": {
            "train": [
                [row["step"], row["samples"], row.get("seconds", 0), row["loss"]] for row in logged
            ],
            "eval": [
                [row["step"], row["samples"], _seconds_at(logged, row["step"]), row["eval/loss"]]
                for row in run.rows
                if row.get("eval/loss") is not None
            ],
        },
    }


def _speeds(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for unit in UNITS:
        speed = steady_speed(run.rows, unit)
        found[f"{unit}_per_second"] = None if speed is None else speed.median
        found[f"{unit}_per_second_quartiles"] = None if speed is None else [speed.low, speed.high]
    return found


def _layout(run: Run) -> str:
    """Return what two runs have in common that only repeat each other."""
    told = ("origins", "files", "notices", "launcher")
    keys = [field.name for field in fields(Plan) if field.name not in told] + ["machine"]
    return json.dumps({key: run.plan.get(key) for key in keys}, sort_keys=True, default=str)


def _best(run: Run) -> dict[str, Any] | None:
    """Return the best value of the metric that a run was asked to watch, and its step; None where
    there is none.
    """
    metric = run.plan.get("best_metric")
    values = (
        {step: value for step, value in run.curve(metric).items() if value is not None}
        if metric
        else {}
    )
    if not values:
        return None
    better = max if run.plan.get("best_mode") == "max" else min
    step = better(values, key=lambda at: float(values[at] or 0.0))
    return {"metric": metric, "value": values[step], "step": step}


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
    """Return the seconds of training at the last logged step up to ``step``: evaluation rows carry
    no clock.
    """
    return max((float(row.get("seconds", 0)) for row in logged if row["step"] <= step), default=0.0)


def _judge(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    """Compare the curves of a group with that of its first run that is not nudged."""
    nudged = [run for run in runs if is_nudged(run)]
    named = [(run, name) for run, name in zip(runs, names, strict=True) if not is_nudged(run)]
    if not named:
        return {
            "runs": list(names),
            "verdict": "nudged runs",
            "why": "without the one that they repeat",
            "against": [],
        }
    (reference, first), *others = named
    precision = precision_of(reference.plan)
    bounds = BOUNDS[precision]
    against: list[dict[str, Any]] = []
    for run, name in others:
        found = judge(run, reference, ("loss",), bounds, nudged)
        gap = measure_gap(run.curve("loss"), reference.curve("loss"))
        entry: dict[str, Any] = {"name": name, "same": None, "found": None}
        if found is not None and gap is not None:
            same = {Sameness.DIFFERS: False, Sameness.UNKNOWN: None}.get(found, True)
            entry |= {
                "same": same,
                "found": found.value,
                **{k: _finite(v) for k, v in vars(gap).items()},
            }
        against.append(entry)
    carried = [measure_gap(one.curve("loss"), reference.curve("loss")) for one in nudged]
    rounding = max((gap.largest for gap in carried if gap is not None), default=None)
    verdict, why = _verdict(first, against, bounds, precision, rounding)
    return {"runs": list(names), "verdict": verdict, "why": why, "against": against}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None  # JSON has no NaN


def _verdict(
    first: str,
    against: Sequence[Mapping[str, Any]],
    bounds: Bounds,
    precision: str,
    rounding: float | None,
) -> tuple[str, str]:
    """Return the verdict and its reasons. ``rounding``: how far nudged runs stray from the
    reference, if there are.
    """
    within = f"bounds for {_PRECISIONS[precision]}: first step {bounds.first:g}, each step {bounds.step:g}"
    if rounding is not None:
        within += (
            f"; or {NUDGE_FACTOR:g} times where nudged runs of {first} lead, {rounding:.1e} at most"
        )
    by = {found: [e for e in against if e["found"] == found.value] for found in Sameness}
    strangers = [
        f"{e['name']} logged no step that {first} logged" for e in against if e["found"] is None
    ]
    unlike = "; ".join(strangers)
    apart, open_, alike = (
        by[Sameness.DIFFERS],
        by[Sameness.UNKNOWN],
        by[Sameness.SAME] + by[Sameness.ROUNDING],
    )
    if apart:
        numbers = ", ".join(
            f"{e['name']} (first step {_scientific(e['first'])}, mean {_scientific(e['mean'])}, largest "
            f"{_scientific(e['largest'])} at step {e['largest_step']})"
            for e in apart
        )
        return "different curves", "; ".join(
            filter(None, [f"apart from {first}: {numbers}", within, unlike])
        )
    if open_:
        worst = max(open_, key=lambda entry: float(entry["largest"]))
        why = (
            f"the same as {first} at the first step, later up to {worst['largest']:.1e} apart ({worst['name']}, step "
            f"{worst['largest_step']}); rounding may lead a network that chooses (ReLU, max pooling) so far, and "
            "so may a fault: trainer parity FILES --config CONFIG tells, by runs from nudged weights"
        )
        return "close curves", "; ".join(filter(None, [why, within, unlike]))
    if alike:
        worst = max(alike, key=lambda entry: float(entry["largest"]))
        why = (
            f"relative differences to {first}: first step at most {max(e['first'] for e in alike):.1e}, at any step "
            f"at most {worst['largest']:.1e} ({worst['name']}, step {worst['largest_step']})"
        )
        if by[Sameness.ROUNDING]:
            why += ", which is what rounding does to this model"
        return "the same curve", "; ".join(filter(None, [why, within, unlike]))
    return ("no common step", unlike) if unlike else ("one run", "no other run has these settings")


def _scientific(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.1e}"
