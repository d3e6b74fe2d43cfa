"""Compare runs: which train under the same settings, whether their curves are the same, and what
each cost.
"""

from __future__ import annotations

import json
import math
import re
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
from ..runs import Run
from ..trials import BOUNDS, NUDGE_FACTOR, Bounds, Sameness, judge, measure_gap, precision_of
from .best import By, best_text, chosen
from .recommendation import recommend

# Settings of the layout of a run, which change no numbers.
_LAYOUT_KEYS = (
    "strategy",
    "world_size",
    "launcher",
    "device",
    "distributed_type",
    "micro_batch_size",
    "accumulation_steps",
)
_LOSS_OF_SET = re.compile(r"eval/([^/]+/)?loss")
_PRECISIONS = {"no": "full precision", "bf16": "bf16", "fp16": "fp16", "tf32": "tf32"}


def make_report(
    runs: Sequence[Run], by: str | None = None, mode: str | None = None
) -> dict[str, Any]:
    """Collect everything that the table, the JSON and the page show.

    Runs whose settings decide the same numbers form a group, and are compared with the first run of
    their group. The largest group is the main one: the settings of all other runs are compared with
    its, and the recommendation is about it.

    Args:
        by: the metric by which the best run is named; else each run's ``best_metric``.
        mode: ``min`` or ``max``: which value of that metric is the best.

    Raises:
        ConfigError: no run has logged a step, or none the metric.
    """
    if not any(map(_has_logged, runs)):
        paths = ", ".join(run.path for run in runs)
        rule = "no step was logged; there is nothing to compare"
        raise ConfigError(Problem(origin=Origin(paths), rule=rule))

    chosen_by = chosen(runs, by, mode)
    runs = _without_partly_known(runs)
    names = _distinct_names(runs)
    groups = _group_by_settings(runs)
    main = max(groups, key=len)
    usual = _settings(runs[main[0]])

    entries = []
    for index, (run, name) in enumerate(zip(runs, names, strict=True)):
        entry = _entry(run, name, chosen_by or By.of(run))
        entry["group"] = _group_of(index, groups)
        entry["differs"] = _differences(_settings(run), usual) if run.plan else {}
        entries.append(entry)

    verdicts = []
    for group in groups:
        group_runs = [runs[index] for index in group]
        group_names = [names[index] for index in group]
        verdicts.append(_compare_group(group_runs, group_names))

    main_number = groups.index(main)
    main_entries = [entries[index] for index in main]
    return {
        "runs": entries,
        "groups": verdicts,
        "main": main_number,
        "settings": _split_settings(runs, names),
        "recommendation": recommend(main_entries, verdicts[main_number], len(entries)),
        "best": best_text(runs, names, chosen_by),
    }


def _has_logged(run: Run) -> bool:
    return any(loss is not None for loss in run.curve("loss").values())


def _without_partly_known(runs: Sequence[Run]) -> list[Run]:
    """Leave out of the plans how a run was built, where runs of older versions did not write it."""
    plans = [run.plan for run in runs if run.plan]
    partly_known = []
    for key in ("optimizer_groups", "schedule_class"):
        if not all(key in plan for plan in plans):
            partly_known.append(key)

    cleaned = []
    for run in runs:
        plan = {key: value for key, value in run.plan.items() if key not in partly_known}
        cleaned.append(replace(run, plan=plan))
    return cleaned


def _distinct_names(runs: Sequence[Run]) -> list[str]:
    """Return the names of the runs, with numbers where two have the same."""
    names = [run.name for run in runs]
    if len(set(names)) == len(names):
        return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]


def _group_by_settings(runs: Sequence[Run]) -> list[list[int]]:
    """Group the positions of the runs that logged something by equal settings."""
    groups: dict[str, list[int]] = {}
    for index, run in enumerate(runs):
        if _has_logged(run):
            key = json.dumps(_settings(run), sort_keys=True, default=str)
            groups.setdefault(key, []).append(index)

    return list(groups.values())


def _group_of(index: int, groups: Sequence[Sequence[int]]) -> int | None:
    """Return the number of the group of a run; None for one that logged nothing."""
    for number, group in enumerate(groups):
        if index in group:
            return number

    return None


def _differences(own: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the usual and the own value of each setting in which they differ."""
    differs = {}
    for key in sorted(own.keys() | usual.keys()):
        if own.get(key) != usual.get(key):
            differs[key] = [usual.get(key), own.get(key)]

    return differs


def _settings(run: Run) -> dict[str, Any]:
    """Return the settings that decide the numbers by dotted key, without those that are not set."""
    settings = fingerprint(run.plan)
    if is_nudged(run):  # the same as the run that it repeats, but for the last places
        settings["weights"] = None

    groups = settings.pop("optimizer_groups", None)
    if groups:  # which hold what became of the optimizer's settings, whoever built it
        settings.pop("optimizer_settings", None)
        by_name = {}
        for name, group in zip(group_names(groups), groups, strict=True):
            by_name[name] = _without_usual(group, settings.get("lr"))
        settings["optimizer_groups"] = by_name

    return {key: value for key, value in _flat(settings) if value is not None}


def _without_usual(group: Mapping[str, Any], lr: object) -> dict[str, Any]:
    """Return an optimizer's group without its name, and without the learning rate of the run."""
    own = {}
    for key, value in group.items():
        if key == "name" or (key == "lr" and value == lr):
            continue
        own[key] = value

    return own


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested values with dotted keys."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _split_settings(runs: Sequence[Run], names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Split the settings into those that all runs share and those that differ.

    Returns:
        ``same``, the value by key, and ``different``, the value of each run by key and name.
    """
    by_run = {}
    for run, name in zip(runs, names, strict=True):
        if run.plan:
            by_run[name] = _all_settings(run)

    same = {}
    different = {}
    keys = dict.fromkeys(key for settings in by_run.values() for key in settings)
    for key in keys:
        values = {name: settings.get(key) for name, settings in by_run.items()}
        first = next(iter(values.values()))
        if all(value == first for value in values.values()):
            same[key] = first
        else:
            different[key] = values
    return {"same": same, "different": different}


def _all_settings(run: Run) -> dict[str, Any]:
    """Return layout, machine, and the settings that decide the numbers, by dotted key."""
    settings = {key: run.plan[key] for key in _LAYOUT_KEYS if key in run.plan}
    settings.update(_flat({"machine": run.plan.get("machine", {})}))
    settings.update(_settings(run))
    return settings


def _entry(run: Run, name: str, by: By | None) -> dict[str, Any]:
    """Return what the report shows of one run; None where a value is not known."""
    plan, summary = run.plan, run.summary
    logged = [row for row in run.rows if row.get("loss") is not None]
    last = logged[-1] if logged else {"step": 0}
    steps = int(last["step"])

    entry = {
        "name": name,
        "path": run.path,
        "ended": bool(summary),
        "state": _state(run, steps),
    }
    keys = ("strategy", "world_size", "mixed_precision", "global_batch_size", "lr", "device")
    entry.update({key: plan.get(key) for key in keys})
    entry["steps"] = steps
    entry.update(_speeds(run))
    entry["layout"] = _layout(run)
    entry["peak_memory_bytes"] = _peak_memory(run, last)
    entry["memory"] = _memory_by_phase(run)
    entry["machine"] = machine_text(plan["machine"]) if "machine" in plan else None
    entry["state_bytes_per_rank"] = plan.get("state_bytes_per_rank")
    entry["seconds"] = summary.get("seconds", {})
    entry["final"] = _final_values(run, last)
    entry["best"] = None if by is None else by.best(run)
    entry["curves"] = _curves(run, logged)
    return entry


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
    if total is None or total == step:
        return ""
    return f"ended at step {step}{of}"


def _speeds(run: Run) -> dict[str, Any]:
    """Return the median of the speeds and their quartiles, in each unit."""
    speeds: dict[str, Any] = {}
    for unit in UNITS:
        speed = steady_speed(run.rows, unit)
        median, quartiles = None, None
        if speed is not None:
            median, quartiles = speed.median, [speed.low, speed.high]
        speeds[f"{unit}_per_second"] = median
        speeds[f"{unit}_per_second_quartiles"] = quartiles

    return speeds


def _layout(run: Run) -> str:
    """Return a text that is equal for two runs that repeat each other: plan and machine."""
    descriptions = ("origins", "files", "notices", "launcher")
    keys = [field.name for field in fields(Plan) if field.name not in descriptions]
    values = {key: run.plan.get(key) for key in [*keys, "machine"]}
    return json.dumps(values, sort_keys=True, default=str)


def _peak_memory(run: Run, last: Mapping[str, Any]) -> list[int]:
    """Return the peak of each rank; of a run that did not end, the last that rank 0 logged."""
    peaks: list[int] | None = run.summary.get("peak_memory_bytes")
    if peaks:
        return peaks

    peak = last.get("peak_memory_bytes")
    return [int(peak)] if peak else []


def _memory_by_phase(run: Run) -> dict[str, int]:
    """Return the peak of each phase, of the rank that needs most."""
    peaks = {}
    for phase, kinds in run.summary.get("memory", {}).items():
        first_kind = next(iter(kinds.values()))  # a GPU has allocated and then reserved bytes
        peaks[phase] = max(first_kind)

    return peaks


def _final_values(run: Run, last: Mapping[str, Any]) -> dict[str, Any]:
    """Return the last loss, and the last value of each metric that is shown to people."""
    final = {}
    if "loss" in last:
        final["loss"] = last["loss"]
    for key, value in run.evaluation.items():
        if is_headline(key) and value is not None:
            final[key] = value

    return final


def _curves(run: Run, logged: Sequence[Mapping[str, Any]]) -> dict[str, list[list[Any]]]:
    """Return the points of the curves: step, samples, seconds, loss.

    They are ``train`` and ``eval``, and ``eval/clean`` of an evaluation set with a name.
    """
    curves: dict[str, list[list[Any]]] = {"train": [], "eval": []}
    for row in logged:
        point = [row["step"], row["samples"], row.get("seconds", 0), row["loss"]]
        curves["train"].append(point)

    for row in run.rows:
        for key, loss in row.items():
            if loss is not None and _LOSS_OF_SET.fullmatch(key):
                point = [row["step"], row["samples"], _seconds_at(logged, row["step"]), loss]
                curves.setdefault(key.removesuffix("/loss"), []).append(point)
    return curves


def _seconds_at(logged: Sequence[Mapping[str, Any]], step: int) -> float:
    """Return the seconds of training at the last logged step up to ``step``.

    Rows of evaluations have no clock of their own.
    """
    seconds = [float(row.get("seconds", 0)) for row in logged if row["step"] <= step]
    return max(seconds, default=0.0)


def _compare_group(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any]:
    """Compare the curves of a group with that of its first run that is not nudged."""
    nudged = []
    others = []
    for run, name in zip(runs, names, strict=True):
        if is_nudged(run):
            nudged.append(run)
        else:
            others.append((run, name))
    if not others:
        return {
            "runs": list(names),
            "verdict": "nudged runs",
            "why": "without the run that they repeat",
            "against": [],
        }

    reference, reference_name = others.pop(0)
    precision = precision_of(reference.plan)
    against = []
    for run, name in others:
        against.append(_compare(run, name, reference, BOUNDS[precision], nudged))
    within = _describe_bounds(precision, reference_name, _largest_by_rounding(reference, nudged))
    verdict, why = _verdict(reference_name, against, within)
    return {"runs": list(names), "verdict": verdict, "why": why, "against": against}


def _compare(
    run: Run, name: str, reference: Run, bounds: Bounds, nudged: Sequence[Run]
) -> dict[str, Any]:
    """Return how far the loss of a run is from the reference's, and whether that is the same.

    ``same`` and ``found`` are None where they share no step; ``same`` alone where it is not known.
    """
    entry: dict[str, Any] = {"name": name, "same": None, "found": None}
    found = judge(run, reference, ("loss",), bounds, nudged)
    gap = measure_gap(run.curve("loss"), reference.curve("loss"))
    if found is None or gap is None:
        return entry

    if found is not Sameness.UNKNOWN:
        entry["same"] = found is not Sameness.DIFFERS
    entry["found"] = found.value
    for key, value in vars(gap).items():
        entry[key] = value if math.isfinite(value) else None  # JSON has no NaN
    return entry


def _largest_by_rounding(reference: Run, nudged: Sequence[Run]) -> float | None:
    """Return how far nudged runs stray from the reference at most; None where there are none."""
    largest = []
    for run in nudged:
        gap = measure_gap(run.curve("loss"), reference.curve("loss"))
        if gap is not None:
            largest.append(gap.largest)

    return max(largest, default=None)


def _describe_bounds(precision: str, reference: str, rounding: float | None) -> str:
    """Return the bounds that count.

    Args:
        precision: a key of ``BOUNDS``.
        reference: its name.
        rounding: how far nudged runs stray from the reference; None where there are none.
    """
    bounds = BOUNDS[precision]
    text = (
        f"bounds for {_PRECISIONS[precision]}: first step {bounds.first:g}, "
        f"each step {bounds.step:g}"
    )
    if rounding is not None:
        text += f"; or {NUDGE_FACTOR:g} times where nudged runs of {reference} lead, "
        text += f"{rounding:.1e} at most"
    return text


def _verdict(reference: str, against: Sequence[Mapping[str, Any]], within: str) -> tuple[str, str]:
    """Return the verdict on a group and its reasons.

    Args:
        reference: its name.
        against: the entry of each other run.
        within: the bounds that count.
    """
    by_finding: dict[str | None, list[Mapping[str, Any]]] = {}
    for entry in against:
        by_finding.setdefault(entry["found"], []).append(entry)
    apart = by_finding.get(Sameness.DIFFERS.value, [])
    unknown = by_finding.get(Sameness.UNKNOWN.value, [])
    rounding = by_finding.get(Sameness.ROUNDING.value, [])
    same = by_finding.get(Sameness.SAME.value, []) + rounding

    without_common_step = []
    for entry in by_finding.get(None, []):
        without_common_step.append(f"{entry['name']} logged no step that {reference} logged")

    if apart:
        verdict, why = "different curves", _why_different(reference, apart)
    elif unknown:
        verdict, why = "close curves", _why_close(reference, unknown)
    elif same:
        verdict, why = "the same curve", _why_same(reference, same, by_rounding=bool(rounding))
    elif without_common_step:
        return "no common step", "; ".join(without_common_step)
    else:
        return "one run", "no other run has these settings"
    return verdict, "; ".join([why, within, *without_common_step])


def _why_different(reference: str, apart: Sequence[Mapping[str, Any]]) -> str:
    descriptions = []
    for entry in apart:
        descriptions.append(
            f"{entry['name']} (first step {_scientific(entry['first'])}, "
            f"mean {_scientific(entry['mean'])}, "
            f"largest {_scientific(entry['largest'])} at step {entry['largest_step']})"
        )

    return f"apart from {reference}: {', '.join(descriptions)}"


def _why_close(reference: str, unknown: Sequence[Mapping[str, Any]]) -> str:
    worst = _farthest(unknown)
    return (
        f"the same as {reference} at the first step, later up to {worst['largest']:.1e} apart "
        f"({worst['name']}, step {worst['largest_step']}); rounding may lead a network that "
        "chooses (ReLU, max pooling) so far, and so may a fault: trainer parity FILES --config "
        "CONFIG tells, by runs from nudged weights"
    )


def _why_same(reference: str, same: Sequence[Mapping[str, Any]], *, by_rounding: bool) -> str:
    worst = _farthest(same)
    first = max(entry["first"] for entry in same)
    text = (
        f"relative differences to {reference}: first step at most {first:.1e}, at any step at most "
        f"{worst['largest']:.1e} ({worst['name']}, step {worst['largest_step']})"
    )
    if by_rounding:
        text += ", which is what rounding does to this model"
    return text


def _farthest(entries: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    return max(entries, key=lambda entry: float(entry["largest"]))


def _scientific(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.1e}"
